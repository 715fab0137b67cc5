"""Results: a row for each case and contender, a line of JSON each; and what the rows of one case say together."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from bench._case import OK
from bench._ours import ONE_THREAD, OURS


@dataclass(frozen=True)
class Row:
    """What one contender did on one case. Times in seconds: median and quartiles of the medians of its turns.

    status : ok, skipped, missing, wrong, failed; the note says why
    bandwidth : bytes per second of a copy, the median of one in every round
    peak_extra_bytes : see Started
    """

    operation: str
    case: str
    n: int
    dtype: str
    series: str
    contender: str
    ours: bool
    status: str
    note: str = ""
    median_s: float | None = None
    q1_s: float | None = None
    q3_s: float | None = None
    turns: int = 0
    calls: int = 0
    warmup_s: float | None = None
    peak_extra_bytes: int | None = None
    input_bytes: int = 0
    floor_bytes: int = 0
    bandwidth: float | None = None
    threads: int = 1
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.operation} {self.case}"

    @property
    def floor_s(self) -> float | None:
        """The time of the bytes that must move at the bandwidth of a copy."""
        return self.floor_bytes / self.bandwidth if self.floor_bytes and self.bandwidth else None


@dataclass(frozen=True)
class Cell:
    """All rows of one case."""

    rows: tuple[Row, ...]

    @property
    def key(self) -> str:
        return self.rows[0].key

    def timed(self, contender: str) -> Row | None:
        """The row of a contender whose result was right."""
        return next((row for row in self.rows if row.contender == contender and row.status == OK), None)

    @property
    def ours(self) -> Row | None:
        return self.timed(OURS)

    @property
    def one_thread(self) -> Row | None:
        return self.timed(ONE_THREAD)

    @property
    def best_peer(self) -> Row | None:
        peers = [row for row in self.rows if not row.ours and row.status == OK]
        return min(peers, key=seconds, default=None)

    def speedup(self, contender: Row | None) -> float | None:
        """How many times as fast as a contender sparsekit is."""
        return seconds(contender) / seconds(self.ours) if contender and self.ours else None

    @property
    def times_floor(self) -> float | None:
        floor = self.ours.floor_s if self.ours else None
        return seconds(self.ours) / floor if floor and self.ours else None

    @property
    def extra(self) -> float | None:
        """Peak extra memory over the size of the input."""
        ours = self.ours
        return (
            ours.peak_extra_bytes / ours.input_bytes if ours and ours.peak_extra_bytes is not None and ours.input_bytes else None
        )


def seconds(row: Row | None) -> float:
    assert row is not None and row.median_s is not None
    return row.median_s


def quartiles(turns: list[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    q1, median, q3 = np.percentile(turns, [25, 50, 75])
    return float(q1), float(median), float(q3)


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Rows by case, in the order in which the cases come."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.key, []).append(row)
    return [Cell(tuple(group)) for group in by_case.values()]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Append the rows of whole cases. Each also tells what follows from it and its case: times over floor and best peer."""
    with open(path, "a", encoding="utf-8") as file:
        for cell in cells(rows):
            peer = cell.best_peer
            for row in cell.rows:
                derived: dict[str, Any] = {
                    "floor_s": row.floor_s,
                    "over_floor": None,
                    "best_peer": None,
                    "best_peer_over_this": None,
                }
                if row.median_s is not None and row.floor_s:
                    derived["over_floor"] = row.median_s / row.floor_s
                if row.median_s is not None and row.ours and peer:
                    derived |= {"best_peer": peer.contender, "best_peer_over_this": seconds(peer) / row.median_s}
                file.write(json.dumps(asdict(row) | derived) + "\n")


def read(path: Path) -> list[Row]:
    """The rows of a file. Raises OSError; ValueError where it holds something else."""
    names = {f.name for f in fields(Row)}
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entries = json.loads(line)
            rows.append(Row(**{name: value for name, value in entries.items() if name in names}))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: expected a row of results, got {line[:60]!r} ({error})") from None
    if not rows:
        raise ValueError(f"{path}: expected rows of results, got none")
    return rows
