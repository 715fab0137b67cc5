"""Which backend serves a call. Built-in backends are a table (a look-up costs well under 1 us); third parties register by the
entry point group ``sparsekit.backends``: name -> module. A backend's module is imported on first use."""

import contextlib
import contextvars
import ctypes
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple, cast

from sparsekit._protocol import Backend

_ENTRY_POINTS = "sparsekit.backends"


class _Spec(NamedTuple):
    module: str
    requirement: str | None  # a top-level module whose presence decides whether the backend can run
    devices: tuple[str, ...] | None  # None: known once the module is loaded
    install: str | None = None  # what to say to pip, where it is not the requirement's name


# In order of preference.
_BUILT_IN = {
    "numba": _Spec("sparsekit_numba", "numba", ("cpu",)),
    "scipy": _Spec("sparsekit_scipy", "scipy", ("cpu",)),
    "cupy": _Spec("sparsekit_cupy", "cupy", ("cuda",), "sparsekit[cuda12], or sparsekit[cuda13] where the driver is for CUDA 13"),
}

_loaded: dict[str, Backend] = {}
_num_threads: int | None = None
_in_use: contextvars.ContextVar[str | None] = contextvars.ContextVar("sparsekit_backend", default=None)


class BackendUnavailableError(ImportError):
    """A backend was asked for, by name or by arrays on its device, but what it needs is not there.

    The message says what to install, or which device was not found. Raised by every function that takes ``backend=``, and by
    ``use_backend``.

    Examples
    --------
    >>> import sparsekit
    >>> issubclass(sparsekit.BackendUnavailableError, ImportError)
    True
    """


@functools.cache
def _third_party() -> dict[str, _Spec]:
    import importlib.metadata  # 30 ms, which most programs never need

    found = importlib.metadata.entry_points(group=_ENTRY_POINTS)
    return {entry.name: _Spec(entry.value, None, None) for entry in found if entry.name not in _BUILT_IN}


def _spec(name: str) -> _Spec:
    spec = _BUILT_IN.get(name) or _third_party().get(name)
    if spec is None:
        known = ", ".join([*_BUILT_IN, *_third_party()])
        raise ValueError(f"unknown backend {name!r}; expected one of: {known}")
    return spec


def _is_installed(spec: _Spec) -> bool:
    return spec.requirement is None or importlib.util.find_spec(spec.requirement) is not None


def _has_driver(spec: _Spec) -> bool:
    """Whether the device's driver is on this machine; CUDA is not started, for what is started cannot be forked."""
    if spec.devices != ("cuda",):
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def load(name: str) -> Backend:
    """The backend of that name, imported if need be."""
    backend = _loaded.get(name)
    if backend is None:
        spec = _spec(name)
        if not _is_installed(spec):
            raise BackendUnavailableError(
                f"backend {name!r} needs {spec.requirement}, which is not installed; run: "
                f"pip install {spec.install or spec.requirement}"
            )
        backend = cast(Backend, importlib.import_module(spec.module))
        missing = getattr(backend, "missing", lambda: None)()
        if missing is not None:
            raise BackendUnavailableError(f"backend {name!r} cannot run here: {missing}")
        backend.set_num_threads(get_num_threads())
        _loaded[name] = backend
    return backend


@functools.cache
def _default(device: str) -> str:
    for name, spec in _BUILT_IN.items():
        if spec.devices is not None and device in spec.devices and _is_installed(spec):
            return name
    for name in _third_party():
        if device in load(name).devices:
            return name
    raise BackendUnavailableError(f"no backend for arrays on device {device!r}; installed: {', '.join(available_backends())}")


def select(name: str | None, device: str) -> Backend:
    """The backend for arrays on this device ("cpu", "cuda:0"): the argument, else use_backend, else SPARSEKIT_BACKEND, else the
    default of such devices."""
    device = device.partition(":")[0]
    wanted = name or _in_use.get() or os.environ.get("SPARSEKIT_BACKEND") or _default(device)
    if not isinstance(wanted, str):
        raise TypeError(f"backend must be a name or None, got {type(wanted).__name__}")
    backend = _loaded.get(wanted) or load(wanted)
    if device not in backend.devices:
        raise ValueError(f"backend {wanted!r} takes arrays on {', '.join(backend.devices)}, got arrays on {device!r}")
    return backend


def available_backends() -> list[str]:
    """Names of the backends that can be used here, the preferred one first.

    Returns
    -------
    list of str
        Built-in backends whose requirement is installed ("cupy": and the CUDA driver), then third-party ones from the entry
        point group ``sparsekit.backends``. Nothing is imported, and no device started: whether the driver finds one is seen
        when the backend is used.

    Notes
    -----
    Cost: a look through ``sys.path``; not for inner loops. Deterministic for a given environment.

    Examples
    --------
    >>> import sparsekit
    >>> "scipy" in sparsekit.available_backends()
    True
    """
    specs = {**_BUILT_IN, **_third_party()}
    return [name for name, spec in specs.items() if _is_installed(spec) and _has_driver(spec)]


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Let every call inside the block use this backend, unless the call names another.

    Parameters
    ----------
    name : str
        One of ``available_backends()``. Order of precedence: a call's ``backend=``, then the innermost ``use_backend``, then the
        environment variable ``SPARSEKIT_BACKEND``, then the first available one that serves the arrays' device.

    Raises
    ------
    ValueError
        Unknown name.
    BackendUnavailableError
        Known, but its requirement is not installed, or no device of its kind is found.

    Notes
    -----
    Holds for the current thread or asyncio task only (a ``contextvars.ContextVar``). Cost: loads the backend on first use.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> with sparsekit.use_backend("scipy"):
    ...     sparsekit.coalesce(np.array([2, 0, 2]), np.array([1.0, 5.0, 2.0]), (3,)).values
    array([5., 3.])
    """
    load(name)
    token = _in_use.set(name)
    try:
        yield
    finally:
        _in_use.reset(token)


def _checked_threads(n: int, source: str) -> int:
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{source} must be an int, got {type(n).__name__}")
    if n < 1:
        raise ValueError(f"{source} must be at least 1, got {n}")
    return n


def set_num_threads(n: int) -> None:
    """Set how many threads a call may use, for the whole process.

    Parameters
    ----------
    n : int
        At least 1. Results have the same bits for any n.

    Raises
    ------
    TypeError, ValueError
        Not an int; less than 1.

    Notes
    -----
    Cost: none until the next call. The ``scipy`` backend always runs on one thread, and ``cupy`` on the device.

    Examples
    --------
    >>> import sparsekit
    >>> before = sparsekit.get_num_threads()
    >>> sparsekit.set_num_threads(2)
    >>> sparsekit.get_num_threads()
    2
    >>> sparsekit.set_num_threads(before)
    """
    global _num_threads
    _num_threads = _checked_threads(n, "n")
    for backend in list(_loaded.values()):
        backend.set_num_threads(_num_threads)


def get_num_threads() -> int:
    """How many threads a call may use.

    Returns
    -------
    int
        What ``set_num_threads`` was given, else the environment variable ``SPARSEKIT_NUM_THREADS``, else the number of CPUs
        that this process may run on.

    Raises
    ------
    ValueError
        ``SPARSEKIT_NUM_THREADS`` is not a positive integer.

    Examples
    --------
    >>> import sparsekit
    >>> sparsekit.get_num_threads() >= 1
    True
    """
    if _num_threads is not None:
        return _num_threads
    text = os.environ.get("SPARSEKIT_NUM_THREADS")
    if text:
        try:
            return _checked_threads(int(text), "SPARSEKIT_NUM_THREADS")
        except ValueError:
            raise ValueError(f"SPARSEKIT_NUM_THREADS must be a positive integer, got {text!r}") from None
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def clear_cache() -> None:
    """Give back the scratch memory that backends keep between calls.

    Notes
    -----
    The ``numba`` backend keeps at most 256 MiB for the process. Cost: none; the next large call takes fresh memory.

    Examples
    --------
    >>> import sparsekit
    >>> sparsekit.clear_cache()
    """
    for backend in list(_loaded.values()):
        clear = getattr(backend, "clear_cache", None)
        if clear is not None:
            clear()
