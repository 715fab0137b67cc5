"""Group COO entries by coordinate: the unique coordinates in row-major order, and which entries fall on each."""

import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._jit import inlined, kernel
from sparsekit_numba._scalars import position
from sparsekit_numba._scratch import Scratch
from sparsekit_numba._sort import Sorted, radix_sort, sort_pairs

Array = NDArray[Any]
Index = NDArray[np.int64]

_UNSORTED, _SORTED, _UNIQUE = 0, 1, 2
_AT_LEAST = 1 << 14  # entries a thread should have to be worth waking
SMALL = 1 << 12  # up to so many entries, one kernel call does it all
DONE, OUT_OF_RANGE, LONG_KEYS = 0, 1, 2


class Groups(NamedTuple):
    """Group s is made of the sorted entries ``starts[s]:starts[s + 1]``; sorted entry i is input entry ``order[i]``.

    Where order is None the input is in order. All but the indices may be scratch.
    """

    indices: Index
    starts: Index
    order: Array | None


class Survey(NamedTuple):
    """What one pass over the indices tells."""

    low: list[int]
    high: list[int]
    is_sorted: bool  # duplicates stand together
    is_unique: bool  # and there are none

    @property
    def bits(self) -> list[int]:
        """How many bits tell the indices of each dimension apart."""
        return [(b - a).bit_length() for a, b in zip(self.low, self.high, strict=True)]

    def within(self, dims: tuple[int, ...]) -> bool:
        return all(a >= 0 and b < dim for a, b, dim in zip(self.low, self.high, dims, strict=True))


def is_coalesced(indices: Index) -> bool:
    return indices.shape[1] == 0 or survey(indices).is_unique


def survey(indices: Index) -> Survey:
    """Of one or more entries. Cost: one pass."""
    sparse_ndim, nnz = indices.shape
    parts = _pool.ranges(nnz, _AT_LEAST)
    extremes = np.empty((len(parts), 2, sparse_ndim), np.int64)
    states = _pool.run([partial(_survey, indices, lo, hi, out) for out, (lo, hi) in zip(extremes, parts, strict=True)])
    low, high = extremes[:, 0].min(axis=0).tolist(), extremes[:, 1].max(axis=0).tolist()
    return Survey(low, high, min(states) >= _SORTED, min(states) == _UNIQUE)


def group(indices: Index, scratch: Scratch) -> Groups:
    """Group one or more entries, of any size."""
    if indices.shape[1] <= SMALL:
        code, groups = group_small(indices, None)
        if code == DONE:
            assert groups is not None
            return groups
    return group_surveyed(indices, survey(indices), scratch)


def group_small(indices: Index, dims: tuple[int, ...] | None) -> tuple[int, Groups | None]:
    """For up to SMALL entries, the short way: (DONE, groups), or what stood in its way; None for dims checks no range."""
    limits = np.array(dims or (0,) * len(indices), np.int64)
    code, *groups = _group_small(indices, limits, dims is not None)
    return code, Groups(*groups) if code == DONE else None


def group_surveyed(indices: Index, found: Survey, scratch: Scratch) -> Groups:
    if found.is_sorted:
        return _groups_in_order(indices, None)
    bits = found.bits
    words = _words(bits)
    if len(words) == 1:
        pairs, decoder = sort_by_key(indices, found, None, scratch)
        parts, total = count_heads(pairs)
        out_indices, starts = np.empty((indices.shape[0], total), np.int64), scratch.empty(total + 1, np.int64)
        starts[-1] = indices.shape[1]
        _pool.run(
            [
                partial(_write_heads, pairs.keys, pairs.bounds, pairs.prefixes, *decoder, first, lo, hi, starts, out_indices)
                for first, lo, hi in parts
            ]
        )
        return Groups(out_indices, starts, pairs.payload)
    order: Array | None = None
    for word in reversed(words):  # as a radix sort with dimensions for digits: the last ones first, each sort stable
        total = sum(bits[word])
        if total:
            keys = _pack(indices[word], found.low[word], bits[word], scratch)
            order = sort_pairs(keys if order is None else keys[order], order, total, scratch).payload
    return _groups_in_order(indices, order)


@kernel
def _group_small(indices: Any, dims: Any, check: Any) -> Any:
    """group, from end to end, on one thread: (code, indices, starts, order)."""
    sparse_ndim, nnz = indices.shape
    extremes = np.empty((2, sparse_ndim), np.int64)
    state = _survey(indices, 0, nnz, extremes)
    order, starts = np.empty(nnz, np.uint32), np.empty(0, np.int64)
    for i in range(nnz):
        order[i] = i
    bits, code = 0, DONE
    shifts, masks = np.zeros(sparse_ndim, np.uint64), np.zeros(sparse_ndim, np.uint64)
    for axis in range(sparse_ndim - 1, -1, -1):
        low, high = extremes[0, axis], extremes[1, axis]
        if check and (low < 0 or high >= dims[axis]):
            code = OUT_OF_RANGE
        shifts[axis] = min(bits, 63)
        extent = np.uint64(high) - np.uint64(low)
        masks[axis] = extent
        while extent > 0:
            extent >>= np.uint64(1)
            masks[axis] |= extent
            bits += 1
    if code == DONE and bits > 64:
        code = LONG_KEYS
    if code != DONE:
        return code, np.empty((sparse_ndim, 0), np.int64), starts, order
    keys = np.zeros(nnz, np.uint64)
    _pack_range(indices, extremes[0], shifts, keys, 0, nnz)
    bounds, sizes = np.zeros(2, np.int64), np.empty(1, np.int64)
    bounds[1] = sizes[0] = nnz
    if state == _UNSORTED:
        counts = np.empty(1 << 11, np.uint32)
        radix_sort(keys, order, np.empty_like(keys), np.empty_like(order), counts, bounds, sizes, 0, 1, bits)
    heads = _count_heads(keys, bounds, 0, nnz)
    out_indices, starts = np.empty((sparse_ndim, heads), np.int64), np.empty(heads + 1, np.int64)
    _write_heads(keys, bounds, np.zeros(1, np.uint64), extremes[0], shifts, masks, 0, 0, nnz, starts, out_indices)
    starts[heads] = nnz
    return code, out_indices, starts, order


@kernel
def _survey(indices: Any, lo: Any, hi: Any, extremes: Any) -> Any:
    """Range of each dimension into ``extremes``; returns whether [lo, hi), and the entry before it, are in order."""
    for axis in range(indices.shape[0]):
        row = indices[axis]
        low, high = np.int64(2**63 - 1), np.int64(-(2**63))
        for i in range(np.uint64(lo), np.uint64(hi)):
            low, high = min(low, row[i]), max(high, row[i])
        extremes[0, axis], extremes[1, axis] = low, high
    state = _UNIQUE
    for i in range(max(lo, 1), hi):
        step = 0
        for axis in range(indices.shape[0]):
            before, after = indices[axis, i - 1], indices[axis, i]
            if before != after:
                step = 1 if after > before else -1
                break
        if step < 0:
            return _UNSORTED
        if step == 0:
            state = _SORTED
    return state


def _words(bits: list[int]) -> list[slice]:
    """Consecutive dimensions whose bits fit 64 together."""
    words, start, total = [], 0, 0
    for axis, b in enumerate(bits):
        if total + b > 64:
            words.append(slice(start, axis))
            start, total = axis, 0
        total += b
    return [*words, slice(start, len(bits))]


def _shifts(bits: list[int]) -> NDArray[np.uint64]:
    # A dimension without bits may lie above 64 others; its shift does not matter.
    return np.array([min(63, sum(bits[axis + 1 :])) for axis in range(len(bits))], np.uint64)


def _pack(indices: Index, low: list[int], bits: list[int], scratch: Scratch) -> Array:
    """One key an entry: the coordinates side by side, so that keys sort as coordinates do."""
    nnz = indices.shape[1]
    keys = scratch.empty(nnz, np.uint32 if sum(bits) <= 32 else np.uint64)
    offset, shifts = np.array(low, np.int64), _shifts(bits)
    _pool.run([partial(_pack_range, indices, offset, shifts, keys, lo, hi) for lo, hi in _pool.ranges(nnz, _AT_LEAST)])
    return keys


@kernel
def _pack_range(indices: Any, low: Any, shifts: Any, keys: Any, lo: Any, hi: Any) -> None:
    for start in range(lo, hi, 4096):  # a block's keys stay in the first-level cache from dimension to dimension
        end = min(start + 4096, hi)
        for axis in range(indices.shape[0]):
            row = indices[axis]
            offset, shift = np.uint64(low[axis]), shifts[axis]
            if axis == 0:
                for i in range(np.uint64(start), np.uint64(end)):
                    keys[i] = (np.uint64(row[i]) - offset) << shift
            else:
                for i in range(np.uint64(start), np.uint64(end)):
                    keys[i] |= (np.uint64(row[i]) - offset) << shift


class Decoder(NamedTuple):
    """How a key becomes coordinates again: ``(key >> shifts) & masks + low``."""

    low: Index
    shifts: NDArray[np.uint64]
    masks: NDArray[np.uint64]


def fits_one_key(found: Survey) -> bool:
    return sum(found.bits) <= 64


def sort_by_key(indices: Index, found: Survey, payload: Array | None, scratch: Scratch) -> tuple[Sorted, Decoder]:
    """Sort the entries, with a payload or with their positions, by coordinates that fit one key."""
    bits = found.bits
    pairs = sort_pairs(_pack(indices, found.low, bits, scratch), payload, sum(bits), scratch)
    masks = np.array([(1 << b) - 1 for b in bits], np.uint64)
    return pairs, Decoder(np.array(found.low, np.int64), _shifts(bits), masks)


def count_heads(pairs: Sorted) -> tuple[list[tuple[int, int, int]], int]:
    """Ranges of the pairs, each as (number of the first group that begins in it, lo, hi), and the number of groups in all."""
    parts = _pool.ranges(pairs.keys.size, _AT_LEAST)
    heads = _pool.run([partial(_count_heads, pairs.keys, pairs.bounds, lo, hi) for lo, hi in parts])
    firsts = [0, *itertools.accumulate(heads)]
    return [(first, lo, hi) for first, (lo, hi) in zip(firsts[:-1], parts, strict=True)], firsts[-1]


@kernel
def _count_heads(keys: Any, bounds: Any, lo: Any, hi: Any) -> Any:
    """How many i in [lo, hi) begin a group: the first of a bucket, and where the key changes."""
    total = 0
    for i in range(np.uint64(max(lo, 1)), np.uint64(hi)):
        total += keys[i] != keys[i - np.uint64(1)]
    for b in range(bounds.size - 1):
        at = bounds[b]
        if lo <= at < hi and bounds[b + 1] > at and (at == 0 or keys[at] == keys[at - 1]):
            total += 1
    return total


@kernel
def _write_heads(
    keys: Any,
    bounds: Any,
    prefixes: Any,
    low: Any,
    shifts: Any,
    masks: Any,
    first: Any,
    lo: Any,
    hi: Any,
    starts: Any,
    out_indices: Any,
) -> None:
    """starts and coordinates of the groups that begin in [lo, hi); the first of them has number ``first``."""
    one, s = np.uint64(1), np.uint64(first)
    for b in range(bucket_of(bounds, lo), bounds.size - 1):
        begin, end = np.uint64(bounds[b]), np.uint64(min(bounds[b + 1], hi))
        if bounds[b] >= hi:
            break
        decoded = s
        for i in range(max(begin, np.uint64(lo)), end):
            if i == begin or keys[i] != keys[i - one]:
                starts[s] = i
                if out_indices.shape[0]:
                    out_indices[0, s] = np.int64(prefixes[b] | np.uint64(keys[i]))
                s += one
        decode(low, shifts, masks, decoded, s, out_indices)


@inlined
def bucket_of(bounds: Any, i: Any) -> Any:
    return np.searchsorted(bounds, i, side="right") - 1


@inlined
def decode(low: Any, shifts: Any, masks: Any, first: Any, last: Any, out_indices: Any) -> None:
    """Whole keys, which stand in row 0 of columns first to last, as coordinates; row 0 itself comes last."""
    for axis in range(out_indices.shape[0] - 1, -1, -1):
        shift, mask, offset = shifts[axis], masks[axis], low[axis]
        for s in range(first, last):
            out_indices[axis, s] = np.int64((np.uint64(out_indices[0, s]) >> shift) & mask) + offset


def _groups_in_order(indices: Index, order: Array | None) -> Groups:
    """Groups of entries that ``order`` (None: their own order) brings together; compares whole coordinates."""
    sparse_ndim, nnz = indices.shape
    parts = _pool.ranges(nnz, _AT_LEAST)
    heads = _pool.run([partial(_count_changes, indices, order, lo, hi) for lo, hi in parts])
    firsts = [0, *itertools.accumulate(heads)]
    out_indices, starts = np.empty((sparse_ndim, firsts[-1]), np.int64), np.empty(firsts[-1] + 1, np.int64)
    starts[-1] = nnz
    _pool.run(
        [
            partial(_write_changes, indices, order, first, lo, hi, starts, out_indices)
            for first, (lo, hi) in zip(firsts[:-1], parts, strict=True)
        ]
    )
    return Groups(out_indices, starts, order)


@inlined
def _is_change(indices: Any, order: Any, i: Any) -> Any:
    """Whether sorted entry i has other coordinates than the one before."""
    if i == 0:
        return True
    here, before = position(order, i), position(order, i - np.uint64(1))
    for axis in range(indices.shape[0]):  # noqa: SIM110, numba has no any() of a generator
        if indices[axis, here] != indices[axis, before]:
            return True
    return False


@kernel
def _count_changes(indices: Any, order: Any, lo: Any, hi: Any) -> Any:
    total = 0
    for i in range(np.uint64(lo), np.uint64(hi)):
        total += _is_change(indices, order, i)
    return total


@kernel
def _write_changes(indices: Any, order: Any, first: Any, lo: Any, hi: Any, starts: Any, out_indices: Any) -> None:
    """starts and coordinates of the groups that begin in [lo, hi); the first of them has number ``first``."""
    s = np.uint64(first)
    for i in range(np.uint64(lo), np.uint64(hi)):
        if _is_change(indices, order, i):
            starts[s] = i
            for axis in range(indices.shape[0]):
                out_indices[axis, s] = indices[axis, position(order, i)]
            s += np.uint64(1)
