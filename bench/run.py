"""Every contender in its own process: checked first, then timed in turn over rounds."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench._case import FAILED, MISSING, NOT_APPLICABLE, OK, Case, Contender
from bench._memory import Copy
from bench._operations import OPERATIONS
from bench._results import Row, quartiles
from bench._worker import LostError, Process, Started, save


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    turn_s : how long a contender makes calls in one turn; it makes at least one
    limit_s : a contender is out of further rounds once it has spent this long in the rounds and has had ``least`` turns
    """

    rounds: int
    least: int
    turn_s: float
    limit_s: float


QUICK = Plan(rounds=3, least=1, turn_s=0.02, limit_s=0.3)
FULL = Plan(rounds=9, least=3, turn_s=0.05, limit_s=1.5)


class Run:
    """Measures one case after the other. A context manager: its processes end with it.

    machine : what every row is to say of the machine
    report : told what is going on
    """

    def __init__(
        self, plan: Plan, threads: int, machine: dict[str, Any], report: Callable[[str], None] = lambda text: None
    ) -> None:
        self._plan = plan
        self._threads = threads
        self._machine = machine
        self._report = report
        self._copy = Copy(threads)
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.end_process(name)

    def measure(self, case: Case, contenders: Sequence[Contender]) -> list[Row]:
        """A row for each contender that can do the case at all."""
        operation = OPERATIONS[case.operation]
        self._report("draws the input")
        try:
            inputs = case.make()
        except ImportError as error:
            missing = Started(MISSING, f"needed for the input: {error}")
            return [_Seat(self, case, contender, missing).row() for contender in contenders if contender.ours]
        seats = []
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            expected = operation.expect(case, inputs)
            save(Path(folder, "inputs"), inputs)
            save(Path(folder, "expected"), expected)
            sizes = {
                "input_bytes": sum(x.nbytes for x in inputs.values()),
                "floor_bytes": operation.floor_bytes(case, inputs, expected),
            }
            del inputs, expected
            for contender in contenders:
                self._report(f"checks {contender.name}")
                started = self._started(case, contender, Path(folder))
                if started.status != NOT_APPLICABLE:
                    seats.append(_Seat(self, case, contender, started, sizes))
        bandwidths = []
        for number in range(self._plan.rounds):
            self._report(f"round {number + 1} of {self._plan.rounds}")
            bandwidths.append(self._copy.bandwidth())
            for seat in seats:
                seat.turn(self._plan)
        for seat in seats:
            seat.stop()
        return [replace(seat.row(), bandwidth=median(bandwidths)) for seat in seats]

    def process(self, contender: Contender) -> Process:
        """The process of the contenders of that name, started if need be."""
        if contender.name not in self._processes:
            self._processes[contender.name] = Process(self.threads(contender))
        return self._processes[contender.name]

    def end_process(self, name: str) -> None:
        self._processes.pop(name).close()

    def threads(self, contender: Contender) -> int:
        return contender.threads or self._threads

    @property
    def machine(self) -> dict[str, Any]:
        return self._machine

    def _started(self, case: Case, contender: Contender, folder: Path) -> Started:
        try:
            return self.process(contender).start(case, contender, folder)
        except LostError as error:
            self.end_process(contender.name)
            return Started(FAILED, str(error))


class _Seat:
    """A contender's place in the rounds of one case, and its times so far."""

    def __init__(self, run: Run, case: Case, contender: Contender, started: Started, sizes: dict[str, int] | None = None) -> None:
        self._run = run
        self._case = case
        self._contender = contender
        self._started = started
        self._sizes = sizes or {}
        self._turns = [] if started.first_s is None else [started.first_s]
        self._calls = len(self._turns)
        self._spent = started.first_s or 0.0

    def turn(self, plan: Plan) -> None:
        if self._started.status != OK or (self._spent > plan.limit_s and len(self._turns) >= plan.least):
            return
        start = time.perf_counter()
        try:
            times = self._run.process(self._contender).turn(plan.turn_s)
        except LostError as error:
            self._run.end_process(self._contender.name)
            self._started = Started(FAILED, str(error))
            return
        self._spent += time.perf_counter() - start
        self._turns.append(median(times))
        self._calls += len(times)

    def stop(self) -> None:
        if self._started.status == OK:
            self._run.process(self._contender).stop()

    def row(self) -> Row:
        case, started = self._case, self._started
        row = Row(
            operation=case.operation,
            case=case.name,
            n=case.n,
            dtype=case.dtype,
            series=case.series,
            contender=self._contender.name,
            ours=self._contender.ours,
            status=started.status,
            note=started.note,
            warmup_s=started.warmup_s,
            peak_extra_bytes=started.peak_extra_bytes,
            threads=self._run.threads(self._contender),
            machine=self._run.machine,
            **self._sizes,
        )
        if started.status != OK:
            return row
        q1, middle, q3 = quartiles(self._turns)
        return replace(row, median_s=middle, q1_s=q1, q3_s=q3, turns=len(self._turns), calls=self._calls)
