"""Any array library -> NumPy or CuPy without a copy, and back.

A library is known to the core by an adapter: how its arrays become NumPy arrays (on the CPU) or CuPy arrays (on a CUDA device)
that share their memory, and how results go back. NumPy and plain DLPack exporters are served here; CuPy and torch need more care
(bfloat16, streams, autograd versions), and their adapters are loaded when the first of their arrays arrives.
"""

import contextlib
import functools
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from sparsekit._protocol import Array
from sparsekit._registry import load

_SPECIAL_ADAPTERS = {"torch": "sparsekit.torch._convert", "cupy": "sparsekit._cupy"}
_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost (pinned host memory)
_DEVICE_NAMES = {2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Adapter(Protocol):
    """One array library's way in and out. ``library`` tells adapters apart: arrays of one call must share it."""

    library: str

    def device(self, x: Any) -> str:
        """ "cpu", "cuda:0", ..."""

    def unwrap(self, x: Any) -> tuple[Array, str]:
        """An array of NumPy or CuPy on the same memory, and the logical dtype's name (bfloat16 comes as uint16 bits)."""

    def wrap(self, a: Array, dtype: str) -> Any:
        """The way back, for a result."""

    def context(self, x: Any) -> contextlib.AbstractContextManager[Any]:
        """Makes the device of x and its library's stream CuPy's current ones; asked for off the CPU only."""

    def wrote(self, x: Any) -> None:
        """Called after the memory of x was written to behind its library's back."""


def widen(a: Array, dtype: str) -> Array:
    """bfloat16 bits as float32, exactly; anything else as it is."""
    return (a.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else a


def namespace(a: Any) -> Any:
    """The module with the functions for a: NumPy, or CuPy for device arrays."""
    if isinstance(a, np.ndarray):
        return np
    if hasattr(a, "__array_namespace__"):  # CuPy's arrays do not have it
        return a.__array_namespace__()
    return sys.modules[type(a).__module__.partition(".")[0]]


class Raw(NamedTuple):
    """An array as the core and the backends see it."""

    array: Array  # of NumPy, or of CuPy
    dtype: str
    adapter: Adapter
    source: Any
    device: str = "cpu"


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which NumPy makes anew each time


def as_bits(a: Any) -> tuple[Array, str]:
    """An array of NumPy or CuPy as the core has it; bfloat16 (from ml_dtypes) as bits."""
    name = _name(a.dtype)
    return (a.view(np.dtype(np.uint16).newbyteorder(a.dtype.byteorder)), name) if name == "bfloat16" else (a, name)


def from_bits(a: Array, dtype: str) -> Any:
    """The way back. Only an input of that very type leads here, so ml_dtypes has been imported by the caller."""
    return a.view(sys.modules["ml_dtypes"].bfloat16) if dtype == "bfloat16" else a


class _NumPy:
    library = "numpy"

    def device(self, x: Any) -> str:
        return "cpu"

    def unwrap(self, x: Any) -> tuple[Array, str]:
        if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
            raise TypeError("masked arrays are not supported: their mask would be lost; expected a plain array (see .filled())")
        a = np.asarray(x)
        if isinstance(x, list | tuple) and a.size == 0:
            a = a.astype(np.int64)  # NumPy reads an empty list as float64, which no index may be
        return as_bits(a)

    def wrap(self, a: Array, dtype: str) -> Any:
        return from_bits(a, dtype)

    def context(self, x: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def wrote(self, x: Any) -> None:
        pass


class _DLPack:
    """An array of some library that exports DLPack."""

    def __init__(self, library: str, from_dlpack: Callable[[Array], Any] | None):
        self.library = library
        self._from_dlpack = from_dlpack

    def device(self, x: Any) -> str:
        kind, number = (int(n) for n in x.__dlpack_device__())
        return "cpu" if kind in _CPU_DEVICES else f"{_DEVICE_NAMES.get(kind, f'dlpack-{kind}')}:{number}"

    def unwrap(self, x: Any) -> tuple[Array, str]:
        a = np.from_dlpack(x) if self.device(x) == "cpu" else _cupy().from_dlpack(x)
        return a, _name(a.dtype)

    def wrap(self, a: Array, dtype: str) -> Any:
        # A bare exporter has no library to go back to: its results are NumPy or CuPy arrays.
        return a if self._from_dlpack is None else self._from_dlpack(a)

    def context(self, x: Any) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = _cupy().cuda.Device(int(x.__dlpack_device__()[1]))
        return context

    def wrote(self, x: Any) -> None:
        pass


_numpy = _NumPy()


def _cupy() -> Any:
    load("cupy")  # else its error, which says what to install
    return importlib.import_module("cupy")


@functools.cache
def _special(cls: type) -> Adapter | None:
    for base in cls.__mro__:
        module = _SPECIAL_ADAPTERS.get(base.__module__.partition(".")[0])
        if module is not None:
            adapter: Adapter = importlib.import_module(module).adapter
            return adapter
    return None


def adapter_of(x: Any, name: str) -> Adapter:
    """The adapter for x; TypeError for what is no array."""
    if isinstance(x, np.ndarray | np.generic | list | tuple | int | float | complex):
        return _numpy
    special = _special(type(x))  # type: ignore[arg-type]
    if special is not None:
        return special
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        root = type(x).__module__.partition(".")[0]
        library = x.__array_namespace__() if hasattr(x, "__array_namespace__") else sys.modules.get(root)
        return _DLPack(root, getattr(library, "from_dlpack", None))
    raise TypeError(f"{name} must be an array (NumPy, CuPy, torch, or anything with __dlpack__), got {type(x).__name__}")


def import_array(x: Any, name: str) -> Raw:
    """x as an array of NumPy or CuPy on the same memory (lists and scalars become arrays as NumPy would have it)."""
    if type(x) is np.ndarray and (dtype := _name(x.dtype)) != "bfloat16":  # the common case, made short
        return Raw(x, dtype, _numpy, x)
    adapter = adapter_of(x, name)
    device = adapter.device(x)
    if device != "cpu" and not device.startswith("cuda:"):
        raise TypeError(f"{name} must be on the CPU or a CUDA device: no backend here takes arrays on device {device!r}")
    a, dtype = adapter.unwrap(x)
    return Raw(a, dtype, adapter, x, device)


def same_place(raws: Sequence[Raw], names: Sequence[str]) -> Raw:
    """The first of these arrays, after checking that all are of one library and on one device."""
    first = raws[0]
    for raw, name in zip(raws, names, strict=True):
        if raw.adapter is not first.adapter and raw.adapter.library != first.adapter.library:
            raise TypeError(
                f"arrays of one call must come from one library: {names[0]} is {first.adapter.library}, {name} is "
                f"{raw.adapter.library}"
            )
        if raw.device != first.device:
            raise ValueError(f"arrays of one call must be on one device: {names[0]} is on {first.device}, {name} on {raw.device}")
    return first


def on_device_of(argument: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a public function: device arrays are handled on their own device, and in their library's stream.

    ``argument`` names the argument whose device it is, or its attribute: ``"param"``, ``"a.values"``; of a list, its first item.
    """
    name, _, attribute = argument.partition(".")
    get = operator.attrgetter(attribute) if attribute else None

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        place = list(inspect.signature(function).parameters).index(name)

        @functools.wraps(function)
        def on_device(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            x = args[place] if len(args) > place else kwargs.get(name)
            if type(x) is np.ndarray:  # the common case, made short
                return function(*args, **kwargs)
            if get is not None and hasattr(x, attribute):
                x = get(x)
            if isinstance(x, list | tuple) and x:
                x = x[0]
            with _context(x):
                return function(*args, **kwargs)

        return on_device

    return decorate


def _context(x: Any) -> contextlib.AbstractContextManager[Any]:
    try:
        adapter = adapter_of(x, "")
    except TypeError:  # no array: the function itself says what it expected
        return contextlib.nullcontext()
    return adapter.context(x) if adapter.device(x).startswith("cuda:") else contextlib.nullcontext()
