"""What changed between two runs. Times of different days do not compare, so ratios to a peer of the same run do."""

from dataclasses import dataclass

from bench._results import Cell, Row, cells, seconds
from bench._tables import BAD, GOOD, PLAIN, Table, times

FASTER, SLOWER, SAME = "faster", "slower", "same"
_LEAST = 1.05


@dataclass(frozen=True)
class Change:
    """sparsekit against the same peer in two runs; without a peer, its times.

    before, after : how many times as fast as the peer, or 1 / seconds
    verdict : same, unless they differ by 5 % and the ranges that the quartiles leave for the two do not overlap
    """

    key: str
    peer: str
    before: float
    after: float
    verdict: str

    @property
    def ratio(self) -> float:
        return self.after / self.before


def changes(before: list[Row], after: list[Row]) -> tuple[list[Change], list[str]]:
    """The changes of the cases that both have measured, and what else is to be said."""
    then, now = ({cell.key: cell for cell in cells(rows)} for rows in (before, after))
    found = [_change(then[key], now[key]) for key in then if key in now and then[key].ours and now[key].ours]
    notes = [f"only before: {key}" for key in then if key not in now] + [f"only after: {key}" for key in now if key not in then]
    for key in then:
        if key in now:
            statuses = {row.contender: row.status for row in then[key].rows}
            notes += [
                f"{key}: {row.contender} was {statuses[row.contender]}, is {row.status}"
                for row in now[key].rows
                if statuses.get(row.contender, row.status) != row.status
            ]
    return found, notes


def table(changes: list[Change]) -> Table:
    """The changes, the greatest first."""
    ordered = sorted(changes, key=lambda change: (change.verdict == SAME, -max(change.ratio, 1 / change.ratio)))
    styles = {FASTER: GOOD, SLOWER: BAD, SAME: PLAIN}
    rows = [
        (
            styles[c.verdict],
            (
                c.key,
                c.peer or "none: times",
                times(c.before) if c.peer else f"{1e3 / c.before:.3g} ms",
                times(c.after) if c.peer else f"{1e3 / c.after:.3g} ms",
                times(c.ratio),
                c.verdict,
            ),
        )
        for c in ordered
    ]
    return Table("sparsekit against the best peer", ("case", "peer", "before", "after", "after / before", ""), 2, rows)


def _change(then: Cell, now: Cell) -> Change:
    peers = [row for row in then.rows if not row.ours and then.timed(row.contender) and now.timed(row.contender)]
    peer = min(peers, key=seconds).contender if peers else ""
    before, low_before, high_before = _speed(then, peer)
    after, low_after, high_after = _speed(now, peer)
    verdict = SAME
    if max(after / before, before / after) >= _LEAST and (low_after > high_before or high_after < low_before):
        verdict = FASTER if after > before else SLOWER
    return Change(then.key, peer, before, after, verdict)


def _speed(cell: Cell, peer: str) -> tuple[float, float, float]:
    """The ratio of the medians, and the least and the greatest ratio of quartiles."""
    ours = cell.ours
    assert ours is not None
    assert ours.median_s and ours.q1_s and ours.q3_s
    row = cell.timed(peer)
    if row is None:
        return 1 / ours.median_s, 1 / ours.q3_s, 1 / ours.q1_s
    assert row.median_s and row.q1_s and row.q3_s
    return row.median_s / ours.median_s, row.q1_s / ours.q3_s, row.q3_s / ours.q1_s
