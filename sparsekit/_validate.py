"""All argument checks of the core, made before anything is written. Messages say what was expected and what came."""

import math
import operator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from sparsekit._dlpack import Adapter, Raw, import_array, namespace, same_place
from sparsekit._protocol import Array, Index

INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
VALUE_DTYPES = frozenset(f"bool float16 bfloat16 float32 float64 complex64 complex128 {' '.join(sorted(INTEGERS))}".split())
REAL_FLOATS = ("float16", "bfloat16", "float32", "float64")
_MAX_DIM = 2**63 - 1


def check_value_dtype(raw: Raw, name: str) -> None:
    if raw.dtype not in VALUE_DTYPES:
        raise TypeError(f"{name} must have a boolean, integer, float or complex dtype of at most 64 bits a part, got {raw.dtype}")


def native(a: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """C-contiguous, aligned, native byte order; a itself where it is so already."""
    if not isinstance(a, np.ndarray):  # on a device, where all arrays are aligned and native
        on_device: Array = namespace(a).asarray(a, dtype or a.dtype, order="C")
        return on_device
    flags = a.flags
    if flags.c_contiguous and flags.aligned and (a.dtype.isnative if dtype is None else a.dtype == dtype):
        return a
    return np.require(a, dtype or a.dtype.newbyteorder("="), ["C_CONTIGUOUS", "ALIGNED"])


def shape_of(shape: Any, name: str = "shape") -> tuple[int, ...]:
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of ints, got {shape!r}") from None
    for axis, d in enumerate(dims):
        if not 0 <= d <= _MAX_DIM:
            raise ValueError(f"{name}[{axis}] must lie between 0 and 2**63 - 1, got {d}")
    return dims


def as_indices(raw: Raw, name: str = "indices") -> Array:
    """The indices as ``(sparse_ndim, nnz)`` in the caller's integer dtype."""
    a = raw.array
    if raw.dtype not in INTEGERS:
        raise TypeError(f"{name} must have an integer dtype, got {raw.dtype}")
    if a.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (sparse_ndim, nnz) or (nnz,), got {a.ndim} dimensions: {a.shape}")
    return a[None] if a.ndim == 1 else a


class Triplet(NamedTuple):
    """A checked COO argument; the range of its indices is not checked yet."""

    indices: Array  # (sparse_ndim, nnz), the caller's dtype and layout
    index_dtype: str
    values: Array  # (nnz, *dense_shape), the caller's layout
    dtype: str
    dims: tuple[int, ...]
    dense_shape: tuple[int, ...]
    adapter: Adapter
    device: str

    def flat_values(self) -> Array:
        """``(nnz, width)``, as a backend takes them."""
        return native(self.values).reshape(self.values.shape[0], math.prod(self.dense_shape))

    def int64_indices(self) -> Index:
        # uint64 beyond int64 wraps to negative, so the range check still finds it.
        return native(self.indices, np.dtype(np.int64))


def as_triplet(indices: Any, values: Any, shape: Any) -> Triplet:
    raw_indices = import_array(indices, "indices")
    raw_values = import_array(values, "values")
    place = same_place((raw_indices, raw_values), ("indices", "values"))
    idx, val = as_indices(raw_indices), raw_values.array
    check_value_dtype(raw_values, "values")
    full = shape_of(shape)
    sparse_ndim, nnz = idx.shape
    if val.ndim < 1:
        raise ValueError("values must have shape (nnz, *dense_shape), got a scalar")
    if val.shape[0] != nnz:
        raise ValueError(f"values must have one entry for each of the {nnz} columns of indices, got {val.shape[0]}")
    if len(full) != sparse_ndim + val.ndim - 1:
        raise ValueError(
            f"shape must have {sparse_ndim} sparse and {val.ndim - 1} dense dimensions, as indices and values say; got {full}"
        )
    if full[sparse_ndim:] != val.shape[1:]:
        raise ValueError(f"the dense dimensions of shape must be those of values, {val.shape[1:]}, got {full[sparse_ndim:]}")
    return Triplet(idx, raw_indices.dtype, val, raw_values.dtype, full[:sparse_ndim], val.shape[1:], place.adapter, place.device)


def check_index_range(indices: Array, dims: tuple[int, ...], name: str = "indices") -> None:
    """IndexError for the first index outside its dimension. Cost: two passes; on a device, a wait for their result."""
    if not indices.size:
        return
    lows, highs = indices.min(axis=1), indices.max(axis=1)
    if not isinstance(indices, np.ndarray):
        lows, highs = namespace(indices).stack((lows, highs)).get()  # waits for the device
    for axis, (low, high, dim) in enumerate(zip(lows.tolist(), highs.tolist(), dims, strict=True)):
        # Compared as Python ints: no wrap for uint64, no overflow for a small dtype and a large dim.
        if not (low >= 0 and high < dim):
            row = indices[axis] if isinstance(indices, np.ndarray) else indices[axis].get()  # waits for the device
            position = int(np.argmax(row < 0 if low < 0 else row > dim - 1))
            raise IndexError(
                f"{name}[{axis}, {position}] = {int(row[position])} is out of range for dimension {axis} of size {dim}"
            )


def unravel(positions: Index, shape: tuple[int, ...]) -> list[Index]:
    """Coordinates of flat positions, an array for each dimension (CuPy's unravel_index waits for the device)."""
    coordinates = []
    for size in reversed(shape[1:]):
        above = positions // size
        coordinates.append(positions - above * size)
        positions = above
    return [positions, *reversed(coordinates)] if shape else []


def scalar(value: Any, name: str, low: float, high: float = math.inf) -> float:
    """A finite float with low <= value < high (1-element tensors and arrays count)."""
    try:
        if isinstance(value, str | bytes):  # which float() would read
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a real number, got {value!r} ({type(value).__name__})") from None
    if not (low <= number < high):
        bounds = f">= {low:g}" + ("" if high == math.inf else f" and < {high:g}")
        raise ValueError(f"{name} must be finite and {bounds}, got {number!r}")
    return number


def integer(value: Any, name: str) -> int:
    if isinstance(value, bool | np.bool):
        raise TypeError(f"{name} must be an int, got a bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None


def _overlaps_itself(a: Array) -> bool:
    """Whether two elements of a may share memory (conservative: a dimension must step over all the smaller ones)."""
    extent = a.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent += stride * (size - 1)
    return False


def addresses(a: Array) -> Array:
    """For NumPy's questions about overlap: a itself, or an array with a device array's addresses, which must not be read."""
    if isinstance(a, np.ndarray):
        return a
    layout = {"shape": a.shape, "strides": a.strides, "typestr": a.dtype.str, "data": (a.data.ptr, True), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=layout)) if a.size else np.empty(a.shape, a.dtype)


def check_output(raw: Raw, name: str) -> None:
    """An array that will be written in place must be a writeable array whose elements do not share memory."""
    if isinstance(raw.source, list | tuple | int | float | complex | np.generic):
        raise TypeError(f"{name} is updated in place and must be an array, got {type(raw.source).__name__}")
    if raw.device == "cpu" and not raw.array.flags.writeable:
        raise ValueError(f"{name} is updated in place and must be writeable, got a read-only array")
    if raw.array.size and not raw.array.flags.c_contiguous and _overlaps_itself(raw.array):
        raise ValueError(
            f"{name} is updated in place and its elements must not share memory, got shape {raw.array.shape} with strides "
            f"{raw.array.strides}"
        )
