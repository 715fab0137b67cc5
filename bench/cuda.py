"""Times the contenders on a CUDA device in turn, in one process: they share the device whatever process they are in."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bench import _cuda
from bench._case import FAILED, MISSING, NOT_APPLICABLE, OK, WRONG, Case, Contender, Operation, Prepared, WrongResultError
from bench._results import Row, quartiles

_COPIED_BYTES = 2**30
_CALLS = 3  # of each contender in a turn


@dataclass
class _Seat:
    contender: Contender
    row: Row
    prepared: Prepared | None = None
    turns: list[float] = field(default_factory=list)


def bandwidth(clock: _cuda.Clock, n_bytes: int = _COPIED_BYTES) -> float:
    """Bytes per second of a copy on the device, read and write counted."""
    xp = _cuda.cupy()
    source = xp.arange(n_bytes // 4, dtype=xp.float32)
    target = xp.empty_like(source)

    def copy() -> None:
        target[...] = source

    copy()
    return 2 * n_bytes / statistics.median(clock(copy) for _ in range(5))


def measure(
    operation: Operation, case: Case, clock: _cuda.Clock, rounds: int, machine: dict[str, Any], copied_bytes: int = _COPIED_BYTES
) -> list[Row]:
    """A row for each contender, its first result checked before it is timed."""
    inputs = case.make()
    expected = operation.expect(case, inputs)
    base = Row(
        operation=operation.name,
        case=case.name,
        n=case.n,
        dtype=case.dtype,
        series=case.series,
        contender="",
        ours=False,
        status=OK,
        floor_bytes=operation.floor_bytes(case, inputs, expected),
        bandwidth=bandwidth(clock, copied_bytes),
        machine=machine,
    )
    seats = [_Seat(c, replace(base, contender=c.name, ours=c.ours)) for c in operation.contenders]
    for seat in seats:
        _try(seat, partial(_first_call, seat, operation, case, inputs, expected))
    for _ in range(rounds):
        for seat in seats:
            if seat.row.status == OK:
                _try(seat, partial(_turn, seat, clock))
    rows = [_finished(seat) for seat in seats if seat.row.status != NOT_APPLICABLE]
    del seats
    gc.collect()  # the next case needs the memory
    return rows


def _try(seat: _Seat, work: Callable[[], None]) -> None:
    """One contender's trouble is a note in its row; the others go on."""
    try:
        work()
    except WrongResultError as error:
        seat.row = replace(seat.row, status=WRONG, note=str(error))
    except ImportError as error:
        seat.row = replace(seat.row, status=MISSING, note=str(error))
    except Exception as error:
        seat.row = replace(seat.row, status=FAILED, note=f"{type(error).__name__}: {error}"[:500])


def _first_call(seat: _Seat, operation: Operation, case: Case, inputs: Any, expected: Any) -> None:
    start = time.perf_counter()
    seat.prepared = seat.contender.prepare(case, inputs)
    if seat.prepared is None:
        seat.row = replace(seat.row, status=NOT_APPLICABLE)
        return
    result = seat.prepared.result(seat.prepared.call(seat.prepared.fresh()))
    seat.row = replace(seat.row, warmup_s=time.perf_counter() - start)
    operation.check(case, inputs, expected, result)


def _turn(seat: _Seat, clock: _cuda.Clock) -> None:
    prepared = seat.prepared
    assert prepared is not None
    for _ in range(_CALLS):
        given = prepared.fresh()
        seat.turns.append(clock(partial(prepared.call, given)))


def _finished(seat: _Seat) -> Row:
    if seat.row.status != OK:
        return seat.row
    q1, median, q3 = quartiles(seat.turns)
    return replace(seat.row, median_s=median, q1_s=q1, q3_s=q3, turns=len(seat.turns) // _CALLS, calls=len(seat.turns))
