"""Scratch memory that is kept between calls: the pages of fresh memory cost more than the work done in it."""

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

KEPT_BYTES = 256 << 20  # at most so much is kept; what a call needs beyond is given back to the system
_SMALL = 1 << 16  # below this the allocator is as fast


class _Store:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free: list[NDArray[np.uint8]] = []


_store = _Store()


def _after_fork() -> None:
    global _store
    _store = _Store()  # the lock may have been held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def clear_cache() -> None:
    """Give all kept scratch memory back."""
    with _store.lock:
        _store.free.clear()


class Scratch:
    """The scratch arrays of one call; used as a context manager, after which the arrays must not be touched any more."""

    def __init__(self) -> None:
        self._taken: list[NDArray[np.uint8]] = []

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *exc_info: object) -> None:
        store = _store
        with store.lock:
            for block in self._taken:
                if block.nbytes + sum(b.nbytes for b in store.free) <= KEPT_BYTES:
                    store.free.append(block)
        self._taken.clear()

    def empty(self, n: int, dtype: Any) -> Array:
        """An uninitialised 1-D array."""
        dtype = np.dtype(dtype)
        nbytes = n * dtype.itemsize
        if nbytes < _SMALL:
            return np.empty(n, dtype)
        block = self._take(nbytes)
        self._taken.append(block)
        return block[:nbytes].view(dtype)

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        store = _store
        with store.lock:
            fitting = [i for i, block in enumerate(store.free) if nbytes <= block.nbytes <= 4 * nbytes]
            if fitting:
                return store.free.pop(min(fitting, key=lambda i: store.free[i].nbytes))
        return np.empty(nbytes, np.uint8)
