"""coalesce: group the coordinates, then reduce each group."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._group import group, is_coalesced
from sparsekit_numba._jit import kernel
from sparsekit_numba._reduce import reduce_groups, split
from sparsekit_numba._scalars import FORMS, MAX, MIN, OPS, PLAIN
from sparsekit_numba._scratch import Scratch

__all__ = ["coalesce", "is_coalesced"]

Array = NDArray[Any]
Index = NDArray[np.int64]


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
    nnz = values.shape[0]
    if nnz == 0:
        empty = np.empty(0, np.int64)
        return indices.copy(), values.copy(), empty if return_inverse else None, empty.copy() if return_counts else None
    work, op, form = _as_kernels_take_it(values, dtype, reduce)
    # A lone number travels with its key; wider rows, and whoever wants the inverse, need the positions.
    lone = not return_inverse and work.shape[1] == 1 and work.itemsize in (4, 8)
    with Scratch() as scratch:
        payload = work[:, 0].view(f"u{work.itemsize}") if lone else None
        groups = group(indices, dims if check else None, scratch, payload)
        if groups is None:
            return None
        if groups.moved is not None:
            work = groups.moved.view(work.dtype)[:, None]
        reduced = reduce_groups(work, groups.order, groups.starts, op, form)
        inverse = _inverse(groups.order, groups.starts, nnz) if return_inverse else None
        counts = np.diff(groups.starts) if return_counts else None
    return groups.indices, _as_they_came(reduced, values), inverse, counts


def _as_kernels_take_it(values: Array, dtype: str, reduce: str) -> tuple[Array, int, int]:
    """(values, op, form) in the few dtypes that kernels are compiled for."""
    op = OPS[reduce]
    if dtype == "bool":  # or and and
        return values.view(np.uint8), MAX if reduce in ("sum", "max") else MIN, PLAIN
    if dtype in FORMS:
        return values.view(np.uint16), op, FORMS[dtype]
    if dtype == "uint16":  # in kernels that stands for 16-bit floats
        return values.astype(np.uint32), op, PLAIN
    return values, op, PLAIN


def _as_they_came(reduced: Array, values: Array) -> Array:
    same_size = reduced.dtype.itemsize == values.dtype.itemsize
    return reduced.view(values.dtype) if same_size else reduced.astype(values.dtype)


def _inverse(order: Array | None, starts: Index, nnz: int) -> Index:
    inverse = np.empty(nnz, np.int64)
    _pool.run([partial(_fill_inverse, order, starts, first, last, inverse) for first, last in split(starts, 1)])
    return inverse


@kernel
def _fill_inverse(order: Any, starts: Any, first: Any, last: Any, inverse: Any) -> None:
    for s in range(first, last):
        for i in range(starts[s], starts[s + 1]):
            if order is None:
                inverse[i] = s
            else:
                inverse[order[i]] = s
