"""Results as tables, for the terminal and in Markdown."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from bench._case import FAILED, OK, WRONG
from bench._results import Cell, Row, seconds
from bench._targets import Verdict, judge

GOOD, BAD, PLAIN = "green", "red", ""


@dataclass(frozen=True)
class Table:
    """Cells of text; a row's style is the colour of its verdict, the note explains the headings."""

    title: str
    headings: tuple[str, ...]
    left: int  # columns aligned to the left
    rows: Sequence[tuple[str, tuple[str, ...]]]
    note: str = ""


def summary(cells: Iterable[Cell], *, quartiles: bool = False) -> Table:
    """Ours, best peer and floor of each case."""
    spread = ("quartiles",) if quartiles else ()
    headings = ("case", "ms", *spread, "best peer", "its ms", "faster", "floor ms", "over floor", "memory", "scaling")
    rows = []
    for cell in cells:
        ours, peer = cell.ours, cell.best_peer
        faster = cell.speedup(peer)
        style = PLAIN if faster is None else GOOD if faster >= 0.9 else BAD
        texts = (
            cell.key,
            _ms(ours.median_s) if ours else "not measured",
            *((f"{_ms(ours.q1_s)} - {_ms(ours.q3_s)}" if ours else "",) if quartiles else ()),
            peer.contender if peer else "none",
            _ms(peer.median_s) if peer else "",
            times(faster),
            _ms(ours.floor_s) if ours else "",
            times(cell.times_floor),
            f"{cell.extra:.2f}x" if cell.extra is not None and cell.rows[0].input_bytes > 1e5 else "",
            times(cell.speedup(cell.one_thread)),
        )
        rows.append((style, texts))
    note = (
        "faster: the best peer's time over sparsekit's. floor: the bytes that must move, at the bandwidth of a copy in the same "
        "rounds. memory: peak extra over the input, result included. scaling: one thread's time over that of all."
    )
    return Table("sparsekit, its best peer and the memory floor", headings, 1, rows, note)


def targets(cells: Iterable[Cell]) -> Table:
    """Each target with its figure."""
    rows = []
    for verdict in judge(cells):
        style = GOOD if verdict.met else PLAIN if verdict.worst is None else BAD
        mark = "met" if verdict.met else "not measured" if verdict.worst is None else "missed"
        where = verdict.case
        if verdict.measured > 1:
            where = f"{where}, the worst of {verdict.measured}" + (f"; {verdict.missed} missed" if verdict.missed else "")
        bound = f"{'>=' if verdict.target.at_least else '<='} {_figure(verdict, verdict.target.limit)}"
        rows.append((style, (verdict.target.text, bound, _figure(verdict, verdict.worst), mark, where)))
    return Table("Targets", ("target", "bound", "reached", "", "in"), 1, rows)


def everyone(cells: Iterable[Cell]) -> Table:
    """Every contender's time on each case."""
    rows = []
    for cell in cells:
        for row in sorted((row for row in cell.rows if row.status == OK), key=seconds):
            spread = f"{_ms(row.q1_s)} - {_ms(row.q3_s)}"
            extra = "" if row.peak_extra_bytes is None else f"{row.peak_extra_bytes / 1e6:.1f}"
            ratio = times(seconds(row) / seconds(cell.ours)) if cell.ours else ""
            warmup = "" if row.warmup_s is None else f"{row.warmup_s:.2f}"
            rows.append(
                (
                    BAD if not row.ours and _beats(row, cell) else PLAIN,
                    (cell.key, row.contender, _ms(row.median_s), spread, ratio, extra, warmup),
                )
            )
    headings = ("case", "contender", "ms", "quartiles", "over sparsekit", "extra MB", "warm-up s")
    return Table("Every contender", headings, 2, rows)


def not_timed(rows: Iterable[Row]) -> Table:
    """Contenders that are missing, wrong, failed or skipped; one row for all cases of one reason."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.status != OK:
            grouped.setdefault((row.contender, row.status, row.note), []).append(row.key)
    texts = []
    for (contender, status, note), keys in grouped.items():
        where = keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"
        texts.append((BAD if status in (WRONG, FAILED) else PLAIN, (contender, status, note, where)))
    return Table("Not timed", ("contender", "", "reason", "in"), 4, texts)


def machine(rows: list[Row]) -> str:
    """What the rows were measured on, in a line."""
    found: dict[str, Any] = rows[0].machine
    gpu = f"{found['gpu']} (driver {found.get('cuda_driver')}), " if found.get("gpu") else ""
    versions = ", ".join(f"{name} {version}" for name, version in (found.get("versions") or {}).items() if version)
    bandwidths = [row.bandwidth for row in rows if row.bandwidth]
    policy = found.get("omp_wait_policy") or "not set"
    copy = f"; copy {min(bandwidths) / 1e9:.1f} - {max(bandwidths) / 1e9:.1f} GB/s" if bandwidths else ""
    return (
        f"{found.get('date')}, commit {str(found.get('commit'))[:12]}, {gpu}{found.get('cpu')}, {found.get('cpus')} CPUs, "
        f"{max(row.threads for row in rows)} threads, OMP_WAIT_POLICY {policy}{copy}; {versions}"
    )


def print_rich(table: Table, console: Console) -> None:
    shown = RichTable(title=table.title, title_justify="left", header_style="bold")
    for i, heading in enumerate(table.headings):
        shown.add_column(heading, justify="left" if i < table.left or heading in ("best peer", "in", "") else "right")
    for style, texts in table.rows:
        shown.add_row(*map(escape, texts), style=style)
    console.print(shown)
    if table.note:
        console.print(table.note, style="dim")


def markdown(table: Table) -> str:
    rule = ["---" if i < table.left or heading in ("best peer", "in", "") else "---:" for i, heading in enumerate(table.headings)]
    lines = [table.headings, rule, *(texts for _, texts in table.rows)]
    body = "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
    return f"**{table.title}**\n\n{body}" + (f"\n\n{table.note}" if table.note else "")


def times(ratio: float | None) -> str:
    """A ratio, to three digits or so."""
    if ratio is None:
        return ""
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def _beats(row: Row, cell: Cell) -> bool:
    return cell.ours is not None and seconds(row) < 0.9 * seconds(cell.ours)


def _ms(elapsed: float | None) -> str:
    """Milliseconds, to three digits, and no more than four decimals."""
    if not elapsed:
        return "" if elapsed is None else "0"
    decimals = 2 - math.floor(math.log10(1e3 * elapsed))
    return f"{1e3 * elapsed:.{min(4, max(0, decimals))}f}"


def _figure(verdict: Verdict, number: float | None) -> str:
    if number is None:
        return ""
    unit = verdict.target.unit
    return f"{100 * number:.1f} %" if unit == "%" else f"{number:.0f} ms" if unit == "ms" else times(number)
