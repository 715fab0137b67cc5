"""Memory: the bandwidth of a copy, and how far a call's resident memory rises."""

import ctypes
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")  # writing 5 sets the high-water mark to what is resident now


class Copy:
    """Copies a buffer far larger than the caches with several threads."""

    def __init__(self, threads: int, nbytes: int = 128 << 20) -> None:
        self._source = np.ones((threads, nbytes // threads // 8))
        self._target = np.zeros_like(self._source)
        self._executor = ThreadPoolExecutor(threads)
        self.bandwidth()

    def bandwidth(self) -> float:
        """Bytes per second, read and written ones counted, of one copy."""
        start = time.perf_counter()
        wait([self._executor.submit(np.copyto, *pair) for pair in zip(self._target, self._source, strict=True)])
        return 2 * self._source.nbytes / (time.perf_counter() - start)


def peak_extra(call: Callable[[], Any]) -> tuple[int | None, Any]:
    """How far resident memory rose above its start while the call ran, and what it returned; None where nobody can say.

    The result counts, and so does what stays resident after. Memory that the C library had kept is given back first.
    """
    _trim()
    try:
        _RESET.write_text("5")
    except OSError:
        return None, call()
    before = _resident("VmRSS")
    result = call()
    after = _resident("VmHWM")
    return (None if before is None or after is None else max(0, after - before)), result


def _resident(field: str) -> int | None:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _trim() -> None:
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
