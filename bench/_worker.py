"""A contender at work: checked, then timed; in a process of its own."""

import gc
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench._case import (
    FAILED,
    MISSING,
    NOT_APPLICABLE,
    OK,
    SKIPPED,
    WRONG,
    Arrays,
    Case,
    Contender,
    Prepared,
    SkippedError,
    WrongResultError,
)
from bench._memory import peak_extra
from bench._operations import OPERATIONS

_SLOW = 0.3  # seconds; a quicker call is made once untimed at the start of every turn
_CALLS = 1000  # in one turn at most
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "SPARSEKIT_NUM_THREADS")


@dataclass(frozen=True)
class Started:
    """What came of a contender's first calls.

    warmup_s : the first call, in which threads are started and kernels compiled
    first_s : the second call, if it was too slow to be made for nothing
    peak_extra_bytes : resident memory above its start in the second call, result included; None where nobody can say
    """

    status: str
    note: str = ""
    warmup_s: float | None = None
    first_s: float | None = None
    peak_extra_bytes: int | None = None


class Worker:
    """Runs one contender after the other, in this process."""

    def __init__(self) -> None:
        self._prepared: Prepared | None = None
        self._slow = False

    def start(self, case: Case, contender: Contender, folder: Path) -> Started:
        """Prepare the case, make the first call, check its result, and measure the memory of a second call."""
        try:
            return self._start(case, contender, folder)
        except SkippedError as reason:
            return Started(SKIPPED, str(reason))
        except WrongResultError as difference:
            return Started(WRONG, str(difference))
        except ImportError as error:
            return Started(MISSING, str(error))
        except Exception as error:  # whatever a contender raises is its result
            return Started(FAILED, f"{type(error).__name__}: {error}")

    def _start(self, case: Case, contender: Contender, folder: Path) -> Started:
        inputs = load(folder / "inputs")
        prepared = contender.prepare(case, inputs)
        if prepared is None:
            return Started(NOT_APPLICABLE)
        warmup_s, result = _timed(prepared)
        OPERATIONS[case.operation].check(case, inputs, load(folder / "expected"), prepared.result(result))
        del result
        self._prepared, self._slow = prepared, warmup_s > _SLOW
        if prepared.elapsed:
            return Started(OK, warmup_s=warmup_s)
        prepared.release()
        extra, (second_s, _) = peak_extra(lambda: _timed(prepared))
        self._slow = second_s > _SLOW
        return Started(OK, "", warmup_s, second_s if self._slow else None, extra)

    def turn(self, seconds: float) -> list[float]:
        """Time calls, at least one, until the seconds are over."""
        prepared = self._prepared
        assert prepared is not None
        times: list[float] = []
        end = time.perf_counter() + seconds
        if not self._slow:
            _timed(prepared)
        while not times or (time.perf_counter() < end and len(times) < _CALLS):
            times.append(_timed(prepared)[0])
        return times

    def stop(self) -> None:
        """Let go of the case."""
        self._prepared = None
        gc.collect(1)


def _timed(prepared: Prepared) -> tuple[float, Any]:
    given = prepared.fresh()
    call = prepared.call
    start = time.perf_counter()
    result = call(given)
    elapsed = time.perf_counter() - start
    return (prepared.elapsed(result) if prepared.elapsed else elapsed), result


def save(folder: Path, arrays: Arrays) -> None:
    """Write the arrays to files in a new folder."""
    folder.mkdir()
    for i, (name, array) in enumerate(arrays.items()):  # numbered, to keep their order
        np.save(folder / f"{i:04}.{name}.npy", array)


def load(folder: Path) -> Arrays:
    """What ``save`` has written."""
    return {path.name[5:-4]: np.load(path) for path in sorted(folder.iterdir())}


class LostError(Exception):
    """A contender's process has ended, or did not answer in time."""


class Process:
    """A handle on a Worker in a process of its own, which works only while the caller waits for it."""

    def __init__(self, threads: int, timeout: float = 180.0) -> None:
        context = multiprocessing.get_context("spawn")  # a fresh interpreter: no thread pool of another library in it
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        self._process.start()
        self._timeout = timeout
        theirs.close()

    def start(self, case: Case, contender: Contender, folder: Path) -> Started:
        started: Started = self._ask("start", case, contender, folder)
        return started

    def turn(self, seconds: float) -> list[float]:
        times: list[float] = self._ask("turn", seconds)
        return times

    def stop(self) -> None:
        self._ask("stop")

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def _ask(self, method: str, *arguments: object) -> Any:
        try:
            self._connection.send((method, arguments))
            if self._connection.poll(self._timeout):
                return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise LostError(f"the process ended with exit code {self._process.exitcode}") from None
        raise LostError(f"no answer within {self._timeout:.0f} s")


def _serve(connection: "Connection[Any, Any]", threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))  # before anything is loaded that reads them
    gc.disable()  # it would run inside the times; stop() collects
    worker = Worker()
    while True:
        try:
            method, arguments = connection.recv()
            connection.send(getattr(worker, method)(*arguments))
        except (EOFError, OSError):
            return  # the caller has gone
