"""One thread pool for all kernels.

Not numba's ``parallel=True``: its layers abort on concurrent callers or after a fork, and their idle workers spin. Here kernels
take a range, release the GIL, and are called from plain threads.
"""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

Task = Callable[[], Any]


class _State:
    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None


_state = _State(1)
_this_thread = threading.local()


def _after_fork() -> None:
    # Threads do not survive a fork, and the lock may have been held by one: start afresh.
    global _state
    _state = _State(_state.num_threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def set_num_threads(n: int) -> None:
    state = _state
    with state.lock:
        if n != state.num_threads:
            old, state.executor, state.num_threads = state.executor, None, n
            if old is not None:
                old.shutdown(wait=False)  # what runs on it is finished; callers that come too late use their own thread


def num_threads() -> int:
    return _state.num_threads


def _executor() -> ThreadPoolExecutor:
    state = _state
    with state.lock:
        if state.executor is None:
            state.executor = ThreadPoolExecutor(max(1, state.num_threads - 1), "sparsekit")
        return state.executor


def _on_worker(task: Task) -> Any:
    _this_thread.is_worker = True
    return task()


def run(tasks: Sequence[Task]) -> list[Any]:
    """Run all tasks, the first on the calling thread, and return their results in order.

    When this returns or raises, none of the tasks is running any more, whatever happened: nobody writes behind the caller's back.
    """
    if len(tasks) <= 1 or _state.num_threads == 1 or getattr(_this_thread, "is_worker", False):
        return [task() for task in tasks]
    executor = _executor()
    futures: list[Future[Any]] = []
    try:
        for task in tasks[1:]:  # one by one: what was submitted before a failure must be waited for
            futures.append(executor.submit(_on_worker, task))  # noqa: PERF401
    except RuntimeError:  # the pool was replaced or the interpreter is shutting down: the rest runs here
        pass
    try:
        here = [task() for task in (tasks[0], *tasks[1 + len(futures) :])]
    finally:
        _wait_for_all(futures)
    return [here[0], *(future.result() for future in futures), *here[1:]]


def _wait_for_all(futures: Sequence[Future[Any]]) -> None:
    interrupt: BaseException | None = None
    while True:
        try:
            wait(futures)
            break
        except KeyboardInterrupt as error:  # kernels cannot be stopped: wait, then let the interrupt through
            interrupt = error
    if interrupt is not None:
        raise interrupt


def ranges(n: int, at_least: int) -> list[tuple[int, int]]:
    """Cut range(n) into one piece a thread, none much shorter than ``at_least``."""
    pieces = max(1, min(_state.num_threads, n // max(1, at_least)))
    bounds = [n * i // pieces for i in range(pieces + 1)]
    return list(itertools.pairwise(bounds))
