"""Charts: one an operation, in each a panel for every series of cases that differ in size only."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")  # files only, no window
import matplotlib.pyplot as plt

from bench._case import OK
from bench._ours import ONE_THREAD, OURS, REFERENCE
from bench._results import Row

plt.rcParams["svg.hashsalt"] = "sparsekit"  # the same rows give the same file
_COLUMNS = 3
_LOOKS = {
    OURS: ("tab:red", "-"),
    ONE_THREAD: ("tab:red", "--"),
    REFERENCE: ("tab:red", ":"),
    "sparsekit.torch": ("tab:pink", "-"),
    "sparsekit, check=False": ("tab:pink", "--"),
    "torch": ("tab:blue", "-"),
    "torch unique + index_add_": ("tab:blue", "--"),
    "scipy sum_duplicates": ("tab:orange", "-"),
    "scipy CSR": ("tab:orange", "--"),
    "numpy": ("tab:green", "-"),
    "pydata/sparse": ("tab:purple", "-"),
    "PyG": ("tab:brown", "-"),
    "graphblas": ("tab:olive", "-"),
    "polars": ("tab:cyan", "-"),
}


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """Write a PNG and an SVG file for each operation that has a series of at least two sizes; the files."""
    files = []
    operations = dict.fromkeys(row.operation for row in rows)
    for operation in operations:
        series = _series([row for row in rows if row.operation == operation])
        if not series:
            continue
        figure = _figure(operation, series)
        for suffix in (".png", ".svg"):
            files.append(folder / f"{operation}{suffix}")
            figure.savefig(files[-1], dpi=120, bbox_inches="tight", metadata={"Date": None} if suffix == ".svg" else None)
        plt.close(figure)
    return files


def _series(rows: list[Row]) -> dict[str, list[Row]]:
    """Timed rows by series, of those with at least two sizes."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.series and row.status == OK:
            found.setdefault(row.series, []).append(row)
    return {name: group for name, group in found.items() if len({row.n for row in group}) > 1}


def _figure(operation: str, series: dict[str, list[Row]]) -> Any:
    columns = min(_COLUMNS, len(series))
    lines = -(-len(series) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(1 + 4.2 * columns, 3.6 * lines), squeeze=False, layout="constrained")
    for ax, (name, group) in zip(axes.flat, series.items(), strict=False):
        for contender in dict.fromkeys(row.contender for row in group):
            _line(ax, [row for row in group if row.contender == contender])
        _floor(ax, group)
        sizes = sorted({row.n for row in group})
        ax.set(xscale="log", yscale="log", title=name, xlabel="n", ylabel="ms")
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
        ax.minorticks_off()
        ax.grid(visible=True, alpha=0.3)
    for ax in axes.flat[len(series) :]:
        ax.set_axis_off()
    labels = {label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), loc="outside right upper", fontsize="small")
    figure.suptitle(f"{operation}: median time, and quartiles")
    return figure


def _line(ax: Any, rows: list[Row]) -> None:
    """The medians of a contender, and a band from quartile to quartile."""
    rows = sorted(rows, key=lambda row: row.n)
    sizes, contender = [row.n for row in rows], rows[0].contender
    colour, dashes = _LOOKS.get(contender, ("tab:gray", "-"))
    bold = contender in (OURS, ONE_THREAD)
    look = {"color": colour, "linestyle": dashes, "linewidth": 2.4 if bold else 1.2, "marker": "o" if bold else "."}
    ax.plot(sizes, [_ms(row.median_s) for row in rows], label=contender, **look)
    ax.fill_between(
        sizes, [_ms(row.q1_s) for row in rows], [_ms(row.q3_s) for row in rows], color=colour, alpha=0.15, linewidth=0
    )


def _floor(ax: Any, rows: list[Row]) -> None:
    """The memory floor, unless it lies so far below that it would only flatten the rest."""
    floors = {row.n: _ms(row.floor_s) for row in rows if row.floor_s}
    if floors and min(floors.values()) > min(_ms(row.median_s) for row in rows) / 100:
        ax.plot(sorted(floors), sorted(floors.values()), color="black", linestyle=":", label="memory floor")


def _ms(seconds: float | None) -> float:
    return 1e3 * (seconds or 0.0)
