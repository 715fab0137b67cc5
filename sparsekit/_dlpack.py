"""Any array library -> NumPy without a copy, and back.

A library is known to the core by an adapter: how its arrays become NumPy arrays that share their memory, and how results go
back. NumPy and plain DLPack exporters are served here; torch needs more care (bfloat16, autograd versions), and its adapter
lives in ``sparsekit.torch``, loaded when the first tensor arrives.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sparsekit._protocol import Array

_SPECIAL_ADAPTERS = {"torch": "sparsekit.torch._convert"}
_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost (pinned host memory)
_DEVICE_NAMES = {2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


class Adapter(Protocol):
    """One array library's way in and out. ``library`` tells adapters apart: arrays of one call must share it."""

    library: str

    def device(self, x: Any) -> str: ...

    def to_numpy(self, x: Any) -> tuple[Array, str]:
        """An ndarray on the same memory, and the logical dtype's name (bfloat16 comes as uint16 bits)."""

    def from_numpy(self, a: Array, dtype: str) -> Any: ...

    def wrote(self, x: Any) -> None:
        """Called after the memory of x was written to behind its library's back."""


def widen(a: Array, dtype: str) -> Array:
    """bfloat16 bits as float32, exactly; anything else as it is."""
    return (a.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else a


class Raw(NamedTuple):
    """An array as the core and the backends see it."""

    array: Array
    dtype: str
    adapter: Adapter
    source: Any


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which NumPy makes anew each time


class _NumPy:
    library = "numpy"

    def device(self, x: Any) -> str:
        return "cpu"

    def to_numpy(self, x: Any) -> tuple[Array, str]:
        if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
            raise TypeError("masked arrays are not supported: their mask would be lost; expected a plain array (see .filled())")
        a = np.asarray(x)
        if isinstance(x, list | tuple) and a.size == 0:
            a = a.astype(np.int64)  # NumPy reads an empty list as float64, which no index may be
        name = _name(a.dtype)
        return (a.view(np.uint16), name) if name == "bfloat16" else (a, name)  # bfloat16: from ml_dtypes

    def from_numpy(self, a: Array, dtype: str) -> Any:
        # Only an input of that very type leads here, so ml_dtypes has been imported by the caller.
        return a.view(sys.modules["ml_dtypes"].bfloat16) if dtype == "bfloat16" else a

    def wrote(self, x: Any) -> None:
        pass


class _DLPack:
    """An array of some library that exports DLPack."""

    def __init__(self, library: str, from_dlpack: Callable[[Array], Any] | None):
        self.library = library
        self._from_dlpack = from_dlpack

    def device(self, x: Any) -> str:
        kind = int(x.__dlpack_device__()[0])
        return "cpu" if kind in _CPU_DEVICES else _DEVICE_NAMES.get(kind, f"dlpack:{kind}")

    def to_numpy(self, x: Any) -> tuple[Array, str]:
        a = np.from_dlpack(x)
        return a, _name(a.dtype)

    def from_numpy(self, a: Array, dtype: str) -> Any:
        # A bare exporter has no library to go back to: its results are NumPy arrays.
        return a if self._from_dlpack is None else self._from_dlpack(a)

    def wrote(self, x: Any) -> None:
        pass


_numpy = _NumPy()


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
        namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else sys.modules.get(root)
        return _DLPack(root, getattr(namespace, "from_dlpack", None))
    raise TypeError(f"{name} must be an array (NumPy, torch, or anything with __dlpack__), got {type(x).__name__}")


def import_array(x: Any, name: str) -> Raw:
    """x as a NumPy array on the same memory (lists and scalars become arrays as NumPy would have it)."""
    if type(x) is np.ndarray and (dtype := _name(x.dtype)) != "bfloat16":  # the common case, made short
        return Raw(x, dtype, _numpy, x)
    adapter = adapter_of(x, name)
    device = adapter.device(x)
    if device != "cpu":
        raise TypeError(f"{name} must be on the CPU: no backend here takes arrays on device {device!r}")
    a, dtype = adapter.to_numpy(x)
    return Raw(a, dtype, adapter, x)


def same_library(raws: Sequence[Raw], names: Sequence[str]) -> Adapter:
    """The one adapter of all these arrays; TypeError where libraries are mixed."""
    first = raws[0].adapter
    for raw, name in zip(raws, names, strict=True):
        if raw.adapter is not first and raw.adapter.library != first.library:
            raise TypeError(
                f"arrays of one call must come from one library: {names[0]} is {first.library}, {name} is {raw.adapter.library}"
            )
    return first
