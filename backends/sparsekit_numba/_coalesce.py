"""coalesce: group the coordinates, then reduce each group."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._group import (
    LONG_KEYS,
    OUT_OF_RANGE,
    SMALL,
    Survey,
    bucket_of,
    count_heads,
    decode,
    fits_one_key,
    group_small,
    group_surveyed,
    is_coalesced,
    sort_by_key,
    survey,
)
from sparsekit_numba._jit import kernel
from sparsekit_numba._reduce import BLOCK, LEVELS, reduce_groups, reduce_rows, split, wide_dtype
from sparsekit_numba._scalars import FORMS, MAX, MEAN, MIN, OPS, PLAIN, combine, divide, store, widen
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
    with Scratch() as scratch:
        code, groups = group_small(indices, dims if check else None) if nnz <= SMALL else (LONG_KEYS, None)
        if code == OUT_OF_RANGE:
            return None
        if groups is None:
            found = survey(indices, dims)
            if check and not found.within(dims):
                return None
            if found.is_unique:
                inverse = np.arange(nnz) if return_inverse else None
                return indices.copy(), values.copy(), inverse, np.ones(nnz, np.int64) if return_counts else None
            lone = work.shape[1] == 1 and work.itemsize in (4, 8) and not return_inverse and not return_counts
            if lone and not found.is_sorted and fits_one_key(found):
                out_indices, reduced = _coalesce_lone(indices, work, found, op, form, scratch)
                return out_indices, _as_they_came(reduced, values), None, None
            groups = group_surveyed(indices, found, scratch)
        reduced = reduce_groups(work, groups.order, groups.starts, op, form)
        inverse = _inverse(groups.order, groups.starts, nnz) if return_inverse else None
        counts = np.diff(groups.starts) if return_counts else None
    return groups.indices, _as_they_came(reduced, values), inverse, counts


def _coalesce_lone(indices: Index, values: Array, found: Survey, op: int, form: int, scratch: Scratch) -> tuple[Index, Array]:
    """One number an entry: it travels with its key through the sort, so that nothing is gathered afterwards."""
    pairs, decoder = sort_by_key(indices, found, values[:, 0].view(f"u{values.itemsize}"), scratch)
    moved = pairs.payload_view(values.dtype)
    parts, total = count_heads(pairs)
    out_indices, out = np.empty((indices.shape[0], total), np.int64), np.empty((total, 1), values.dtype)
    tree = partial(np.empty, (LEVELS, 1), wide_dtype(values))
    where = pairs.words, np.uint64(pairs.low), moved[:, None], pairs.bounds, pairs.prefixes, *decoder
    _pool.run([partial(_write_lone, *where, op, form, first, lo, hi, tree(), out_indices, out) for first, lo, hi in parts])
    return out_indices, out


@kernel
def _write_lone(
    words: Any,
    low: Any,
    values: Any,
    bounds: Any,
    prefixes: Any,
    offset: Any,
    shifts: Any,
    masks: Any,
    op: Any,
    form: Any,
    first: Any,
    lo: Any,
    hi: Any,
    tree: Any,
    out_indices: Any,
    out: Any,
) -> None:
    """Coordinates and reduced values of the groups that begin in [lo, hi); the first of them has number ``first``."""
    one, s, end_of_range = np.uint64(1), np.uint64(first), np.uint64(hi)
    for b in range(bucket_of(bounds, lo), bounds.size - 1):
        i, last = np.uint64(bounds[b]), np.uint64(bounds[b + 1])
        if i >= end_of_range:
            break
        decoded = s
        if i < np.uint64(lo):  # what began before belongs to the range before
            i = np.uint64(lo)
            while i < last and np.uint64(words[i] ^ words[i - one]) >> low == np.uint64(0):
                i += one
        while i < min(last, end_of_range):
            key = np.uint64(words[i]) >> low
            x = widen(values[i, 0], form)
            end = i + one
            while end < last and np.uint64(words[end]) >> low == key:
                x = combine(op, x, widen(values[end, 0], form))
                end += one
            if end - i > np.uint64(BLOCK):
                x = tree[reduce_rows(values, None, np.int64(i), np.int64(end), op, form, tree), 0]
            if op == MEAN:
                x = divide(x, end - i)
            out_indices[0, s] = np.int64(prefixes[b] | key)
            store(out, s, 0, x, form)
            s += one
            i = end
        decode(offset, shifts, masks, decoded, s, out_indices)


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
