"""coalesce: group the entries by coordinate, then reduce each group in the contract's order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sparsekit_scipy import _bfloat16

Array = NDArray[Any]
Index = NDArray[np.int64]

_BLOCK = 32
_WIDE = {"float16": np.float32, "float32": np.float64, "complex64": np.complex128}
_UFUNCS = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def coalesce(
    indices: Index,
    values: Array,
    dims: tuple[int, ...],
    *,
    dtype: str,
    reduce: str,
    return_inverse: bool,
    return_counts: bool,
    check: bool,
) -> tuple[Index, Array, Index | None, Index | None] | None:
    if check and any(((row < 0) | (row > dim - 1)).any() for row, dim in zip(indices, dims, strict=True)):
        return None
    nnz = indices.shape[1]
    order = np.lexsort(indices[::-1]) if len(dims) else np.arange(nnz)
    is_first = np.ones(nnz, bool)
    is_first[1:] = (indices[:, order[1:]] != indices[:, order[:-1]]).any(axis=0)
    inverse = np.empty(nnz, np.int64)
    inverse[order] = np.cumsum(is_first) - 1
    nnz_out = int(is_first.sum())
    # Row i of this matrix marks the entries that fall on output i; CSR lists them in input order.
    groups = sparse.csr_array((np.ones(nnz, bool), (inverse, np.arange(nnz))), shape=(nnz_out, nnz))
    counts = np.diff(groups.indptr).astype(np.int64)
    reduced = reduce_groups(values[groups.indices], counts, dtype, reduce)
    unique = np.ascontiguousarray(indices[:, order[is_first]])
    return unique, reduced, inverse if return_inverse else None, counts if return_counts else None


def is_coalesced(indices: Index) -> bool:
    """Each coordinate differs from the one before first in a row where it is larger."""
    before, after = indices[:, :-1], indices[:, 1:]
    larger = np.zeros(before.shape[1], bool)
    for row_before, row_after in zip(before[::-1], after[::-1], strict=True):  # the last dimension counts least
        larger = (row_after > row_before) | ((row_after == row_before) & larger)
    return bool(larger.all())


def reduce_groups(values: Array, counts: Index, dtype: str, reduce: str) -> Array:
    """Reduce consecutive runs of ``counts`` rows; accumulated in the wide type, rounded once."""
    if dtype == "bfloat16":
        return _bfloat16.from_float32(_reduce_wide(_bfloat16.to_float32(values), counts, reduce))
    # NumPy's + and * of bool are "or" and "and", and its integers wrap in their own dtype: nothing to do for either.
    wide = values.astype(_WIDE.get(dtype, values.dtype))
    with np.errstate(over="ignore", invalid="ignore"):  # overflow to infinity is the right value
        return _reduce_wide(wide, counts, reduce).astype(values.dtype)


def _reduce_wide(wide: Array, counts: Index, reduce: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        total = _tree(wide, counts, _UFUNCS[reduce])
        if reduce == "mean":
            parts = total.view(total.real.dtype)  # complex numbers as pairs: each part is divided by the count
            parts /= counts[:, None].astype(parts.dtype)
        return total


def _tree(x: Array, counts: Index, ufunc: np.ufunc) -> Array:
    """Each run cut into blocks of 32, each block reduced left to right, then the same on the blocks' results."""
    while True:
        blocks_per_run = -(-counts // _BLOCK)
        run = np.repeat(np.arange(counts.size), blocks_per_run)
        block = np.arange(run.size) - np.repeat(np.cumsum(blocks_per_run) - blocks_per_run, blocks_per_run)
        start = (np.cumsum(counts) - counts)[run] + _BLOCK * block
        length = np.minimum(_BLOCK, counts[run] - _BLOCK * block)
        total: Array = x[start]
        for j in range(1, int(length.max(initial=0))):
            longer = length > j
            total[longer] = ufunc(total[longer], x[start[longer] + j])
        if (blocks_per_run <= 1).all():
            return total
        x, counts = total, blocks_per_run
