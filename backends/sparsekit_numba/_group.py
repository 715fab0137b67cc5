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
from sparsekit_numba._sort import CHUNK, Counted, Keys, Sorted, count_parts, make_keys, partition_bits, radix_sort, sort_pairs

Array = NDArray[Any]
Index = NDArray[np.int64]

_AT_LEAST = 1 << 14  # entries a thread should have to be worth waking
_SPARE_BITS = 2  # bits that keys by shape may be wider than keys by the indices that occur
_SMALL_BITS = 12
SMALL = 1 << _SMALL_BITS  # up to so many entries, one kernel call does it all
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
    parts: list[tuple[int, int]]
    heads: list[int]  # if sorted: how many groups begin in each part
    keys: Keys | None = None  # if made: the keys of coordinates within the shape,
    counted: Counted | None = None  # ready to be partitioned

    @property
    def is_unique(self) -> bool:
        return self.is_sorted and sum(self.heads) == self.parts[-1][1]

    @property
    def bits(self) -> list[int]:
        """How many bits tell the indices of each dimension apart."""
        return [(b - a).bit_length() for a, b in zip(self.low, self.high, strict=True)]

    def within(self, dims: tuple[int, ...]) -> bool:
        return all(a >= 0 and b < dim for a, b, dim in zip(self.low, self.high, dims, strict=True))


def is_coalesced(indices: Index) -> bool:
    return indices.shape[1] == 0 or survey(indices).is_unique


def survey(indices: Index, dims: tuple[int, ...] | None = None) -> Survey:
    """Of one or more entries; with dims, whose coordinates fit one key, also what a sort needs to know. Cost: one pass."""
    sparse_ndim, nnz = indices.shape
    parts = _pool.ranges(nnz, _AT_LEAST)
    extremes = np.empty((len(parts), 2, sparse_ndim), np.int64)
    bits = [max(1, dim - 1).bit_length() for dim in dims or ()]
    keys = counted = None
    if dims and sum(bits) <= 64:
        keys = Keys(indices, np.zeros(sparse_ndim, np.int64), bits)
        first_bits = partition_bits(nnz, keys.bits)
        counted = Counted(parts, first_bits, np.zeros((len(parts), 1 << first_bits), np.int64))
        making = indices, keys.offset, keys.shifts, np.uint64(min(keys.bits - first_bits, 63))
        tasks = [
            partial(_survey_keys, *making, *row, lo, hi) for *row, (lo, hi) in zip(counted.counts, extremes, parts, strict=True)
        ]
    else:
        tasks = [partial(_survey, indices, lo, hi, out) for out, (lo, hi) in zip(extremes, parts, strict=True)]
    heads = _pool.run(tasks)
    low, high = extremes[:, 0].min(axis=0).tolist(), extremes[:, 1].max(axis=0).tolist()
    found = Survey(low, high, min(heads) >= 0, parts, heads, keys, counted)
    if keys is not None and dims is not None:
        if not found.within(dims):  # then keys tell nothing
            return survey(indices)
        if keys.bits > sum(found.bits) + _SPARE_BITS:  # the partition would fill few of its buckets
            return found._replace(keys=None, counted=None)
        if counted is not None and not found.is_sorted:
            count_parts(keys, counted, [n >= 0 for n in heads])
    return found


def group(indices: Index, dims: tuple[int, ...], check: bool, scratch: Scratch) -> Groups | None:
    """Group one or more entries, of any size; None if ``check`` finds one outside dims."""
    if indices.shape[1] <= SMALL:
        code, groups = group_small(indices, dims if check else None)
        if code != LONG_KEYS:
            return groups
    found = survey(indices, dims)
    return None if check and not found.within(dims) else group_surveyed(indices, found, scratch)


def group_small(indices: Index, dims: tuple[int, ...] | None) -> tuple[int, Groups | None]:
    """For up to SMALL entries, the short way: (DONE, groups), or what stood in its way; None for dims checks no range."""
    limits = np.array(dims or (0,) * len(indices), np.int64)
    code, *groups = _group_small(indices, limits, dims is not None)
    return code, Groups(*groups) if code == DONE else None


def group_surveyed(indices: Index, found: Survey, scratch: Scratch) -> Groups:
    if found.is_sorted:
        return _groups_in_order(indices, None, found.parts, found.heads)
    bits, nnz = found.bits, indices.shape[1]
    words = _words(bits)
    if len(words) == 1:
        pairs, decoder = sort_by_key(indices, found, None, scratch)
        ranges, total = count_heads(pairs)
        out_indices, starts = np.empty((indices.shape[0], total), np.int64), scratch.empty(total + 1, np.int64)
        starts[-1] = nnz
        positions = scratch.empty(nnz, np.uint32) if pairs.payload is None else pairs.payload
        making = *pairs, *decoder
        _pool.run([partial(_write_heads, *making, first, lo, hi, starts, positions, out_indices) for first, lo, hi in ranges])
        return Groups(out_indices, starts, positions)
    order: Array | None = None
    for word in reversed(words):  # as a radix sort with dimensions for digits: the last ones first, each sort stable
        if sum(bits[word]):
            offset = np.array(found.low[word], np.int64)
            rows = indices[word] if order is None else indices[word, order]
            pairs = sort_pairs(Keys(rows, offset, bits[word]), order, scratch)
            order = np.ascontiguousarray(pairs.payload_view(np.uint32)) if pairs.payload is None else pairs.payload
    assert order is not None
    parts = _pool.ranges(nnz, _AT_LEAST)
    heads = _pool.run([partial(_count_changes, indices, order, lo, hi) for lo, hi in parts])
    return _groups_in_order(indices, order, parts, heads)


@kernel
def _group_small(indices: Any, dims: Any, check: Any) -> Any:
    """group, from end to end, on one thread: (code, indices, starts, order)."""
    sparse_ndim, nnz = indices.shape
    extremes = np.empty((2, sparse_ndim), np.int64)
    heads = _survey(indices, 0, nnz, extremes)
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
    if code == DONE and bits > 64 - _SMALL_BITS:
        code = LONG_KEYS
    if code != DONE:
        return code, np.empty((sparse_ndim, 0), np.int64), np.empty(0, np.int64), np.empty(0, np.uint32)
    words, order, low = np.zeros(nnz, np.uint64), np.empty(nnz, np.uint32), np.uint64(_SMALL_BITS)
    make_keys(indices, extremes[0], shifts, 0, nnz, words)
    for i in range(np.uint64(nnz)):
        words[i] = words[i] << low | i
    bounds, sizes = np.zeros(2, np.int64), np.empty(1, np.int64)
    bounds[1] = sizes[0] = nnz
    if heads < 0:
        counts = np.empty(1 << 11, np.uint32)
        radix_sort(words, None, np.empty_like(words), None, counts, bounds, sizes, 0, 1, _SMALL_BITS, bits)
        heads = _count_heads(words, low, bounds, 0, nnz)
    out_indices, starts = np.empty((sparse_ndim, heads), np.int64), np.empty(heads + 1, np.int64)
    prefixes = np.zeros(1, np.uint64)
    _write_heads(words, low, None, bounds, prefixes, extremes[0], shifts, masks, 0, 0, nnz, starts, order, out_indices)
    starts[heads] = nnz
    return code, out_indices, starts, order


@kernel
def _survey(indices: Any, lo: Any, hi: Any, extremes: Any) -> Any:
    """Range of each dimension into ``extremes``.

    Returns how many of the entries [lo, hi) differ from the one before; -1 if one comes before that one in order.
    """
    for axis in range(indices.shape[0]):
        row = indices[axis]
        low, high = np.int64(2**63 - 1), np.int64(-(2**63))
        for i in range(np.uint64(lo), np.uint64(hi)):
            low, high = min(low, row[i]), max(high, row[i])
        extremes[0, axis], extremes[1, axis] = low, high
    heads, one = np.int64(lo == 0), np.uint64(1)
    for i in range(np.uint64(max(lo, 1)), np.uint64(hi)):
        for axis in range(indices.shape[0]):
            before, after = indices[axis, i - one], indices[axis, i]
            if before != after:
                if after < before:
                    return -1
                heads += 1
                break
    return heads


@kernel
def _survey_keys(indices: Any, offset: Any, shifts: Any, rest: Any, counts: Any, extremes: Any, lo: Any, hi: Any) -> Any:
    """_survey by keys. If they are out of order it also counts them by their bits from ``rest`` on."""
    extremes[0], extremes[1] = 2**63 - 1, -(2**63)
    mask, keys, one = np.uint64(counts.size - 1), np.zeros(CHUNK, np.uint64), np.uint64(1)
    heads, before = np.int64(0), np.uint64(0)
    if lo > 0:
        make_keys(indices, offset, shifts, lo - 1, lo, keys)
        before = keys[0]
    for first in range(lo, hi, CHUNK):
        last = min(first + CHUNK, hi)
        n = np.uint64(last - first)
        for axis in range(indices.shape[0]):
            row, low, high = indices[axis], extremes[0, axis], extremes[1, axis]
            for i in range(np.uint64(first), np.uint64(last)):
                low, high = min(low, row[i]), max(high, row[i])
            extremes[0, axis], extremes[1, axis] = low, high
        make_keys(indices, offset, shifts, first, last, keys)
        counted = first
        if heads >= 0:
            falls, changes = keys[0] < before, np.int64(keys[0] != before or first == 0)
            for i in range(one, n):
                falls |= keys[i] < keys[i - one]
                changes += keys[i] != keys[i - one]
            heads = np.int64(-1) if falls else heads + changes
            before = keys[n - one]
            counted = lo if falls else last  # the first fall: what came before was not counted
        for start in range(counted, last, CHUNK):
            if counted < first:
                make_keys(indices, offset, shifts, start, min(start + CHUNK, hi), keys)
            for i in range(np.uint64(min(CHUNK, hi - start))):
                counts[(keys[i] >> rest) & mask] += 1
    return heads


def _words(bits: list[int]) -> list[slice]:
    """Consecutive dimensions whose bits fit 64 together."""
    words, start, total = [], 0, 0
    for axis, b in enumerate(bits):
        if total + b > 64:
            words.append(slice(start, axis))
            start, total = axis, 0
        total += b
    return [*words, slice(start, len(bits))]


class Decoder(NamedTuple):
    """How a key becomes coordinates again: ``(key >> shifts) & masks + low``."""

    low: Index
    shifts: NDArray[np.uint64]
    masks: NDArray[np.uint64]


def fits_one_key(found: Survey) -> bool:
    return sum(found.bits) <= 64


def sort_by_key(indices: Index, found: Survey, payload: Array | None, scratch: Scratch) -> tuple[Sorted, Decoder]:
    """Sort the entries, with a payload or with their positions, by coordinates that fit one key."""
    keys = found.keys
    if keys is None:
        keys = Keys(indices, np.array(found.low, np.int64), found.bits)
    pairs = sort_pairs(keys, payload, scratch, found.counted)
    masks = np.array([(1 << b) - 1 for b in keys.widths], np.uint64)
    return pairs, Decoder(keys.offset, keys.shifts, masks)


def count_heads(pairs: Sorted) -> tuple[list[tuple[int, int, int]], int]:
    """Ranges of the pairs, each as (number of the first group that begins in it, lo, hi), and the number of groups in all."""
    parts = _pool.ranges(pairs.words.size, _AT_LEAST)
    heads = _pool.run([partial(_count_heads, pairs.words, np.uint64(pairs.low), pairs.bounds, lo, hi) for lo, hi in parts])
    firsts = [0, *itertools.accumulate(heads)]
    return [(first, lo, hi) for first, (lo, hi) in zip(firsts[:-1], parts, strict=True)], firsts[-1]


@kernel
def _count_heads(words: Any, low: Any, bounds: Any, lo: Any, hi: Any) -> Any:
    """How many i in [lo, hi) begin a group: the first of a bucket, and where the key changes."""
    total = 0
    for i in range(np.uint64(max(lo, 1)), np.uint64(hi)):
        total += np.uint64(words[i] ^ words[i - np.uint64(1)]) >> low != np.uint64(0)
    for b in range(bounds.size - 1):
        at = bounds[b]
        if lo <= at < hi and bounds[b + 1] > at and (at == 0 or np.uint64(words[at] ^ words[at - 1]) >> low == np.uint64(0)):
            total += 1
    return total


@kernel
def _write_heads(
    words: Any,
    low: Any,
    payload: Any,
    bounds: Any,
    prefixes: Any,
    offset: Any,
    shifts: Any,
    masks: Any,
    first: Any,
    lo: Any,
    hi: Any,
    starts: Any,
    order: Any,
    out_indices: Any,
) -> None:
    """starts and coordinates of the groups that begin in [lo, hi), and the order where it is part of the words.

    The first of the groups has number ``first``.
    """
    one, low, s = np.uint64(1), np.uint64(low), np.uint64(first)
    for b in range(bucket_of(bounds, lo), bounds.size - 1):
        begin, end = np.uint64(bounds[b]), np.uint64(min(bounds[b + 1], hi))
        if bounds[b] >= hi:
            break
        decoded = s
        for i in range(max(begin, np.uint64(lo)), end):
            word = np.uint64(words[i])
            if payload is None:
                order[i] = word & ((one << low) - one)
            if i == begin or (word ^ np.uint64(words[i - one])) >> low != np.uint64(0):
                starts[s] = i
                if out_indices.shape[0]:
                    out_indices[0, s] = np.int64(prefixes[b] | word >> low)
                s += one
        decode(offset, shifts, masks, decoded, s, out_indices)


@inlined
def bucket_of(bounds: Any, i: Any) -> Any:
    return np.searchsorted(bounds, i, side="right") - 1


@inlined
def decode(offset: Any, shifts: Any, masks: Any, first: Any, last: Any, out_indices: Any) -> None:
    """Whole keys, which stand in row 0 of columns first to last, as coordinates; row 0 itself comes last."""
    for axis in range(out_indices.shape[0] - 1, -1, -1):
        shift, mask, low = shifts[axis], masks[axis], offset[axis]
        for s in range(first, last):
            out_indices[axis, s] = np.int64((np.uint64(out_indices[0, s]) >> shift) & mask) + low


def _groups_in_order(indices: Index, order: Array | None, parts: list[tuple[int, int]], heads: list[int]) -> Groups:
    """Groups of entries that ``order`` (None: their own order) brings together; ``heads`` of them begin in each part."""
    sparse_ndim, nnz = indices.shape
    firsts = [0, *itertools.accumulate(heads)]
    out_indices, starts = np.empty((sparse_ndim, firsts[-1]), np.int64), np.empty(firsts[-1] + 1, np.int64)
    starts[-1] = nnz
    _pool.run(
        [
            partial(_write_changes, indices, order, first, end, lo, hi, starts, out_indices)
            for (first, end), (lo, hi) in zip(itertools.pairwise(firsts), parts, strict=True)
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
def _write_changes(indices: Any, order: Any, first: Any, end: Any, lo: Any, hi: Any, starts: Any, out_indices: Any) -> None:
    """starts and coordinates of the groups that begin in [lo, hi), which have the numbers first <= s < end."""
    s = np.uint64(first)
    for i in range(np.uint64(lo), np.uint64(hi)):
        if s == np.uint64(end):  # few groups, found at once
            return
        if _is_change(indices, order, i):
            starts[s] = i
            for axis in range(indices.shape[0]):
                out_indices[axis, s] = indices[axis, position(order, i)]
            s += np.uint64(1)
