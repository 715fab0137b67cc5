"""topk and topk_mask: the k largest magnitudes over one array or a list of arrays."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsekit import _validate
from sparsekit._coo import COO
from sparsekit._dlpack import Raw, import_array, namespace, on_device_of, same_place, widen
from sparsekit._protocol import Array, Index
from sparsekit._registry import select


@on_device_of("x")
def topk(
    x: Any,
    k: int | None = None,
    *,
    ratio: float | None = None,
    sorted: bool = False,
    nan: str = "largest",
    backend: str | None = None,
) -> Any:
    """The k entries of largest magnitude, over one array or over a list of arrays as if they were concatenated.

    Parameters
    ----------
    x : array, or list or tuple of arrays
        Any shapes; bool, integer, float (float16 and bfloat16 included) or complex. The floats of a list may differ in dtype and
        are compared by exact value.
    k : int, optional
        How many entries in all, 0 <= k <= total size. Exactly k are selected: ties go to the lowest flat position, earlier
        arrays first.
    ratio : float, optional
        Instead of k: the share of the entries, in [0, 1], rounded up.
    sorted : bool
        Order each result by magnitude, largest first (ties: lowest position first), instead of by flat position.
    nan : {"largest", "raise"}
        NaN ranks above infinity whatever its sign; or is refused.
    backend : str, optional
        See ``use_backend``.

    Returns
    -------
    COO, or list of COO
        indices int64 ``(x.ndim, k)``, values ``(k,)`` as they stand in x (signed), shape x.shape; one COO for each array of a
        list. Arrays of the input's library (torch tensors are detached from autograd).

    Raises
    ------
    ValueError
        k or ratio out of range; NaN with ``nan="raise"``; an unknown nan or backend.
    TypeError
        Not exactly one of k and ratio; k no int; no array; dtypes without a common order; arrays of several libraries.

    Notes
    -----
    Magnitude is exact for the most negative integer (int8: 128); complex numbers go by absolute value; -0.0 equals 0.0.
    Cost: O(n) reads, no concatenation, O(k) extra memory (complex and mixed dtypes: one float an entry).
    Deterministic: the selection is exact, the same on every backend and for any number of threads.
    Source: global top-k of gradient sparsification (Aji and Heafield 2017; Lin et al. 2018), as selection by magnitude.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> sparsekit.topk(np.array([1.0, -5.0, 2.0, 4.0]), 2).values
    array([-5.,  4.])
    >>> [part.values for part in sparsekit.topk([np.array([1, -9]), np.array([7, 2])], ratio=0.5)]
    [array([-9]), array([7])]
    """
    raws, positions = _select(x, k, ratio, nan, backend)
    out = []
    for raw, chosen in zip(raws, positions, strict=True):
        a = raw.array
        if a.flags.c_contiguous:
            values = a.reshape(-1).take(chosen)
            indices = chosen[None] if a.ndim == 1 else _unravel(chosen, a.shape)
        else:  # whose flat form would be a copy of it all
            indices = _unravel(chosen, a.shape)
            values = a[tuple(indices[axis] for axis in range(a.ndim))]
        values = _validate.native(values)
        if sorted:
            order = _by_magnitude(values, raw.dtype)
            values, indices = values[order], _validate.native(indices[:, order])
        back = raw.adapter.wrap
        out.append(COO(back(indices, "int64"), back(values, raw.dtype), a.shape))
    return out if isinstance(x, list | tuple) else out[0]


@on_device_of("x")
def topk_mask(
    x: Any, k: int | None = None, *, ratio: float | None = None, nan: str = "largest", backend: str | None = None
) -> Any:
    """Mark the k entries of largest magnitude, over one array or over a list of arrays as if they were concatenated.

    Parameters
    ----------
    x, k, ratio, nan, backend
        As for ``topk``.

    Returns
    -------
    bool array of x's shape, or list of them
        Exactly k True in all; of the input's library.

    Raises
    ------
    ValueError, TypeError
        As ``topk``.

    Notes
    -----
    Cost: as ``topk``, and one byte an entry written. Deterministic. Source: as ``topk``.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> sparsekit.topk_mask(np.ones(4), 2)
    array([ True,  True, False, False])
    """
    raws, positions = _select(x, k, ratio, nan, backend)
    out = []
    for raw, chosen in zip(raws, positions, strict=True):
        mask = namespace(raw.array).zeros(raw.array.size, np.bool)
        mask[chosen] = True
        out.append(raw.adapter.wrap(mask.reshape(raw.array.shape), "bool"))
    return out if isinstance(x, list | tuple) else out[0]


def _select(x: Any, k: int | None, ratio: float | None, nan: str, backend: str | None) -> tuple[list[Raw], list[Index]]:
    """The arrays and, for each, the ascending flat positions of its chosen entries."""
    if nan not in ("largest", "raise"):
        raise ValueError(f"nan must be 'largest' or 'raise', got {nan!r}")
    if (k is None) == (ratio is None):
        raise TypeError("expected exactly one of k and ratio, got " + ("neither" if k is None else "both"))
    raws = _import(x)
    n = sum(raw.array.size for raw in raws)
    if ratio is not None:
        k = math.ceil(_validate.scalar(ratio, "ratio", 0.0, math.nextafter(1.0, 2.0)) * n)
    k = _validate.integer(k, "k")
    if not 0 <= k <= n:
        raise ValueError(f"k must lie between 0 and {n}, the number of entries; got {k}")
    served_by = select(backend, raws[0].device if raws else "cpu")
    none = [namespace(raw.array).empty(0, np.int64) for raw in raws]
    refuse_nan = nan == "raise" and any(raw.dtype not in ("bool", *_validate.INTEGERS) for raw in raws)
    if n == 0 or (k == 0 and not refuse_nan):
        return raws, none
    magnitudes, dtype = _magnitudes(raws)
    # NaN ranks first, so if there is one at all, it is among the chosen.
    positions = served_by.topk(magnitudes, max(k, 1), dtype=dtype)
    if refuse_nan:
        is_nan = [_is_nan(a[chosen], dtype) for a, chosen in zip(magnitudes, positions, strict=True)]
        if namespace(is_nan[0]).concatenate(is_nan).any():  # on a device: waits
            i = next(i for i, marks in enumerate(is_nan) if marks.any())
            where = f"x[{i}]" if isinstance(x, list | tuple) else "x"
            first = int(positions[i][is_nan[i]][0])
            raise ValueError(f"nan='raise': expected no NaN, got one in {where} at flat position {first}")
    return raws, positions if k else none


def _import(x: Any) -> list[Raw]:
    many = isinstance(x, list | tuple)
    arrays = list(x) if many else [x]
    names = [f"x[{i}]" for i in range(len(arrays))] if many else ["x"]
    for a, name in zip(arrays, names, strict=True):
        if isinstance(a, list | tuple | int | float | complex):
            raise TypeError(f"{name} must be an array, got {type(a).__name__}; a list stands for several arrays")
    raws = [import_array(a, name) for a, name in zip(arrays, names, strict=True)]
    if raws:
        same_place(raws, names)
    for raw, name in zip(raws, names, strict=True):
        _validate.check_value_dtype(raw, name)
    return raws


def _magnitudes(raws: Sequence[Raw]) -> tuple[list[Array], str]:
    """1-D contiguous arrays of one real dtype, ordered by magnitude as the inputs are."""
    parts, dtypes = [], []
    for raw in raws:
        a, dtype = _validate.native(raw.array).reshape(-1), raw.dtype
        if dtype.startswith("complex"):
            absolute = abs(a)
            absolute[namespace(a).isnan(a)] = np.nan  # |inf + nan j| is inf in C, but the number is a NaN
            a, dtype = absolute, absolute.dtype.name
        parts.append(a)
        dtypes.append(dtype)
    if len(set(dtypes)) == 1:
        return parts, dtypes[0]
    if not set(dtypes) <= set(_validate.REAL_FLOATS):
        raise TypeError(f"the arrays of a list must share one dtype, or all be floats; got {', '.join(dtypes)}")
    wide = "float64" if "float64" in dtypes else "float32"
    return [widen(a, dtype).astype(wide, copy=False) for a, dtype in zip(parts, dtypes, strict=True)], wide


def _is_nan(a: Array, dtype: str) -> Array:
    marks: Array = namespace(a).isnan(widen(a, dtype))
    return marks


def _by_magnitude(values: Array, dtype: str) -> Index:
    """A stable order, largest magnitude first, NaN before all."""
    xp = namespace(values)
    if dtype == "bool" or (values.dtype.kind == "u" and dtype != "bfloat16"):
        magnitude = values
    elif values.dtype.kind == "i":
        # abs of the most negative value wraps to itself, whose bits are the right magnitude
        magnitude = xp.abs(values).view(f"u{values.itemsize}")
    else:  # the bits of floats >= 0 are in the order of the floats, NaN last
        wide = widen(values, dtype)
        absolute = xp.abs(wide)
        absolute[xp.isnan(wide)] = np.nan
        magnitude = absolute.view(f"u{absolute.itemsize}")
    order: Index = xp.argsort(~magnitude, kind="stable")
    return order


def _unravel(positions: Index, shape: tuple[int, ...]) -> Index:
    """Coordinates of flat positions, (ndim, k)."""
    xp = namespace(positions)
    coordinates: Index = xp.stack(_validate.unravel(positions, shape)) if shape else xp.empty((0, positions.size), np.int64)
    return coordinates
