"""How kernels are compiled and kept: nogil machine code, cached on disk where a folder can be written, in memory where not."""

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

_log = logging.getLogger("sparsekit")
_kernels: list[Any] = []


@cache
def _fingerprint() -> str:
    """Of every source of this backend: a kernel inlines helpers from other files, which numba's own stamp does not see."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _KernelCache(FunctionCache):
    """numba's cache with two differences: the stamp above, and a folder that fails costs the cache, not the call."""

    def __init__(self, py_func: Callable[..., Any]):
        super().__init__(py_func)
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, _fingerprint())

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Any:
        try:
            yield
        except OSError as error:
            _log.warning("kernel cache in %s not used: %s", self._cache_path, error)


def kernel(py_func: Callable[..., Any]) -> Any:
    """Compile on first call for each combination of dtypes; releases the GIL; division by zero follows IEEE."""
    compiled = numba.njit(nogil=True, error_model="numpy")(py_func)
    if isinstance(compiled, Dispatcher):  # not with NUMBA_DISABLE_JIT=1
        try:
            compiled._cache = _KernelCache(py_func)  # type: ignore[attr-defined]
        except (RuntimeError, OSError) as error:  # numba: no folder can be written
            _log.warning("kernels are compiled anew in each process: %s", error)
        _kernels.append(compiled)
    return compiled


def inlined(py_func: Callable[..., Any]) -> Any:
    """A helper that is compiled into the kernels that call it."""
    return numba.njit(nogil=True, error_model="numpy")(py_func)


def cache_folder() -> str | None:
    """Where compiled kernels are kept; None where no folder can be written."""
    folder = next((k._cache.cache_path for k in _kernels if k._cache.cache_path), None)
    return None if folder is None else os.fspath(folder)
