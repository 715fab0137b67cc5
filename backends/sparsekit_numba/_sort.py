"""A stable parallel sort of (key, payload) pairs: one partition by the high bits, then radix sorts that stay in cache.

Where a key and its payload fit 64 bits together they travel as one word, ``key << low | payload``, without a payload array:
half the streams to write to. Kernels are compiled for either form.
"""

import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._jit import inlined, kernel
from sparsekit_numba._scratch import Scratch

Array = NDArray[Any]
Index = NDArray[np.int64]

_SERIAL = 1 << 14  # fewer pairs than this are sorted by one thread, without a partition
_BUCKET_BITS = 14  # the partition aims at buckets of this many pairs, which fit the second-level cache
_MOST_BUCKET_BITS = 9  # more buckets than 512 are written to slower than they save
CHUNK = 1024  # keys that are made together, in the first-level cache


class Keys(NamedTuple):
    """How coordinates become keys: side by side, so that keys sort as coordinates do."""

    indices: Index  # (dims, n)
    offset: Index  # of each dimension, subtracted first
    widths: list[int]  # bits that each dimension then needs

    @property
    def bits(self) -> int:
        return sum(self.widths)

    @property
    def shifts(self) -> NDArray[np.uint64]:
        # A dimension without bits may lie above 64 others; its shift does not matter.
        return np.array([min(63, sum(self.widths[axis + 1 :])) for axis in range(len(self.widths))], np.uint64)


class Sorted(NamedTuple):
    """Pairs in key order. Bucket b holds ``bounds[b]:bounds[b + 1]``; a full key is ``prefixes[b] | words[i] >> low``."""

    words: Array  # what the partition left of the keys, uint32 or uint64, above ``low`` bits of payload
    low: int
    payload: Array | None  # or the payload by itself, and low is 0
    bounds: NDArray[np.int64]
    prefixes: NDArray[np.uint64]

    def payload_view(self, dtype: Any) -> Array:
        """The payload as an array of its own; where it is part of the words it must be 32 bits wide."""
        return self.words.view(dtype).reshape(-1, 2)[:, _LOW_HALF] if self.payload is None else self.payload.view(dtype)


_LOW_HALF = int(np.array([1], np.uint64).view(np.uint32)[0] == 0)  # of a word in memory


class Counted(NamedTuple):
    """How many keys of each part of the input begin with which bits: the first half of a partition."""

    parts: list[tuple[int, int]]
    high: int  # how many bits those are
    counts: Index  # (parts, 1 << high)


def partition_bits(n: int, bits: int) -> int:
    """By how many bits n keys of so many bits are partitioned before each bucket is sorted."""
    if n < _SERIAL:
        return 0
    high = max(6, n.bit_length() - _BUCKET_BITS)
    if bits - 32 <= _MOST_BUCKET_BITS:
        high = max(high, bits - 32)  # then what is left of the keys fits 32 bits
    return min(bits, high, _MOST_BUCKET_BITS)


def sort_pairs(keys: Keys, payload: Array | None, scratch: Scratch, counted: Counted | None = None) -> Sorted:
    """Sort by key; equal keys keep their order. Without a payload the pairs carry their positions. The result is scratch.

    Cost: about 4 reads and writes of the pairs; extra memory: two copies of the pairs.
    """
    n = keys.indices.shape[1]
    parts, high, counts = counted or _count_keys(keys)
    rest = keys.bits - high
    width = 8 * payload.itemsize if payload is not None else 32 if n <= 1 << 32 else 64
    low = 32 if rest <= 32 == width else 0
    words = scratch.empty(n, np.uint32 if rest <= 32 and not low else np.uint64)
    out_payload = None if low else scratch.empty(n, f"u{width // 8}" if payload is None else payload.dtype)
    starts, bounds = _starts(counts)
    making = keys.indices, keys.offset, keys.shifts, np.uint64(min(rest, 63)), payload, np.uint64((1 << rest) - 1), np.uint64(low)
    _pool.run([partial(_move, *making, row, words, out_payload, lo, hi) for row, (lo, hi) in zip(starts, parts, strict=True)])
    prefixes = np.arange(1 << high, dtype=np.uint64) << np.uint64(min(rest, 63))
    pairs = Sorted(words, low, out_payload, bounds, prefixes)
    if rest:
        _sort_buckets(pairs, rest, scratch)
    return pairs


def _count_keys(keys: Keys) -> Counted:
    n = keys.indices.shape[1]
    parts, high = _pool.ranges(n, _SERIAL // 2), partition_bits(n, keys.bits)
    counted = Counted(parts, high, np.zeros((len(parts), 1 << high), np.int64))
    count_parts(keys, counted, [True] * len(parts))
    return counted


def count_parts(keys: Keys, counted: Counted, which: list[bool]) -> None:
    """Fill the counts of some parts."""
    making = keys.indices, keys.offset, keys.shifts, np.uint64(min(keys.bits - counted.high, 63))
    rows = itertools.compress(zip(counted.counts, counted.parts, strict=True), which)
    _pool.run([partial(_count, *making, row, lo, hi) for row, (lo, hi) in rows])


def _starts(counts: Index) -> tuple[Index, Index]:
    """(where each part writes its first of each bucket, the bounds of the buckets), from the counts of the parts."""
    ends = np.cumsum(counts.T).reshape(counts.T.shape).T  # bucket by bucket, in each the parts in order
    starts = np.ascontiguousarray(ends - counts)
    return starts, np.append(starts[0], ends[-1, -1])


@inlined
def make_keys(indices: Any, offset: Any, shifts: Any, first: Any, last: Any, keys: Any) -> None:
    """The keys of entries first to last, into the first places of ``keys``."""
    first, n = np.uint64(first), np.uint64(last - first)
    for axis in range(indices.shape[0]):
        row = indices[axis]
        below, shift = np.uint64(offset[axis]), shifts[axis]
        if axis == 0:
            for i in range(n):
                keys[i] = (np.uint64(row[first + i]) - below) << shift
        else:
            for i in range(n):
                keys[i] |= (np.uint64(row[first + i]) - below) << shift


@kernel
def _count(indices: Any, offset: Any, shifts: Any, rest: Any, counts: Any, lo: Any, hi: Any) -> None:
    mask, keys = np.uint64(counts.size - 1), np.zeros(CHUNK, np.uint64)
    for first in range(lo, hi, CHUNK):
        last = min(first + CHUNK, hi)
        make_keys(indices, offset, shifts, first, last, keys)
        for i in range(np.uint64(last - first)):
            counts[(keys[i] >> rest) & mask] += 1


@kernel
def _move(
    indices: Any,
    offset: Any,
    shifts: Any,
    rest: Any,
    payload: Any,
    keep: Any,
    low: Any,
    at: Any,
    words: Any,
    out_payload: Any,
    lo: Any,
    hi: Any,
) -> None:
    mask, keys = np.uint64(at.size - 1), np.zeros(CHUNK, np.uint64)
    for first in range(lo, hi, CHUNK):
        last = min(first + CHUNK, hi)
        make_keys(indices, offset, shifts, first, last, keys)
        for i in range(np.uint64(last - first)):
            bucket = (keys[i] >> rest) & mask
            to = np.uint64(at[bucket])
            at[bucket] = to + np.uint64(1)
            entry = np.uint64(first) + i
            load = entry if payload is None else np.uint64(payload[entry])
            if out_payload is None:
                words[to] = (keys[i] & keep) << low | load
            else:
                words[to], out_payload[to] = keys[i] & keep, load


def _sort_buckets(pairs: Sorted, bits: int, scratch: Scratch) -> None:
    """Sort each bucket in place: large ones by all threads together, the others shared out."""
    words, low, payload, bounds, _ = pairs
    sizes = np.diff(bounds)
    fair = max(1 << 16, words.size // (2 * _pool.num_threads()))
    for b in np.flatnonzero(sizes > fair) if _pool.num_threads() > 1 else ():
        here = slice(bounds[b], bounds[b + 1])
        _sort_large(words[here], None if payload is None else payload[here], low, bits, scratch)
        sizes[b] = 0
    work = np.concatenate([[0], np.cumsum(sizes)])
    pieces = _pool.ranges(int(work[-1]), _SERIAL // 2)
    cuts = [0, *(int(np.searchsorted(work, hi)) for _, hi in pieces[:-1]), sizes.size]
    tasks = []
    for first, last in itertools.pairwise(cuts):
        largest = int(sizes[first:last].max(initial=0))
        spare = scratch.empty(largest, words.dtype), None if payload is None else scratch.empty(largest, payload.dtype)
        counts = np.empty(1 << _WIDEST, np.uint32)
        tasks.append(partial(radix_sort, words, payload, *spare, counts, bounds, sizes, first, last, low, bits))
    _pool.run(tasks)


def _sort_large(words: Array, payload: Array | None, low: int, bits: int, scratch: Scratch) -> None:
    """Radix sort with all threads, lowest digit first."""
    source = words, payload
    target = scratch.empty(words.size, words.dtype), None if payload is None else scratch.empty(payload.size, payload.dtype)
    for digit in range(0, bits, _WIDEST):
        shift, width = np.uint64(low + digit), min(_WIDEST, bits - digit)
        parts = _pool.ranges(words.size, _SERIAL // 2)
        counts = np.zeros((len(parts), 1 << width), np.int64)
        _pool.run([partial(_count_digits, source[0], shift, row, lo, hi) for row, (lo, hi) in zip(counts, parts, strict=True)])
        starts, _ = _starts(counts)
        _pool.run(
            [partial(_move_digits, *source, shift, row, *target, lo, hi) for row, (lo, hi) in zip(starts, parts, strict=True)]
        )
        source, target = target, source
    if source[0] is not words:
        words[:] = source[0]
        if payload is not None:
            payload[:] = source[1]


@kernel
def _count_digits(words: Any, shift: Any, counts: Any, lo: Any, hi: Any) -> None:
    mask = np.uint64(counts.size - 1)
    for i in range(np.uint64(lo), np.uint64(hi)):
        counts[(np.uint64(words[i]) >> shift) & mask] += 1


@kernel
def _move_digits(words: Any, payload: Any, shift: Any, at: Any, out_words: Any, out_payload: Any, lo: Any, hi: Any) -> None:
    mask = np.uint64(at.size - 1)
    for i in range(np.uint64(lo), np.uint64(hi)):
        digit = (np.uint64(words[i]) >> shift) & mask
        to = np.uint64(at[digit])
        at[digit] = to + np.uint64(1)
        out_words[to] = words[i]
        if payload is not None:
            out_payload[to] = payload[i]


_WIDEST = 11  # bits of a digit at most
_NARROW = 9  # bits of a digit whose 512 places to write to stay in the first-level cache
_SHORT = 40  # pairs that are sorted by insertion


@kernel
def radix_sort(
    words: Any,
    payload: Any,
    spare_words: Any,
    spare_payload: Any,
    counts: Any,
    bounds: Any,
    sizes: Any,
    first: Any,
    last: Any,
    low: Any,
    bits: Any,
) -> None:
    """Sort buckets first <= b < last in place, those of size 0 aside, by the ``bits`` bits above ``low``.

    Few bits: radix passes on all of them. Many: two passes on the highest, about as many as tell n keys apart, then insertion for
    what is left; where that takes too long (keys that agree in their high bits), passes on all bits after all.
    """
    for b in range(first, last):
        n = np.uint64(sizes[b])
        if n < 2:
            continue
        lo = np.uint64(bounds[b])
        w, w2 = words[lo : lo + n], spare_words[:n]
        p, p2 = payload, spare_payload
        if payload is not None:
            p, p2 = payload[lo : lo + n], spare_payload[:n]
        if n <= _SHORT:
            _insertion_sort(w, p, low, n * n)
            continue
        width = 6
        while width < _WIDEST and (1 << (2 * width)) < 2 * n:
            width += 1
        if bits > 3 * _NARROW:
            _radix_pass(w, p, w2, p2, counts, low + bits - 2 * width, width)
            _radix_pass(w2, p2, w, p, counts, low + bits - width, width)
            if _insertion_sort(w, p, low, 4 * n):
                continue
        passes = (bits + _NARROW - 1) // _NARROW
        width = (bits + passes - 1) // passes
        for digit in range(passes):
            _radix_pass(w, p, w2, p2, counts, low + digit * width, min(width, bits - digit * width))
            w, w2, p, p2 = w2, w, p2, p
        if passes % 2:  # the result is in the spare arrays
            for i in range(n):
                w2[i] = w[i]
                if payload is not None:
                    p2[i] = p[i]


@inlined
def _radix_pass(words: Any, payload: Any, out_words: Any, out_payload: Any, counts: Any, shift: Any, width: Any) -> None:
    """Stable distribution by one digit."""
    n, digits = np.uint64(words.size), np.uint64(1 << width)
    shift = np.uint64(shift)
    for value in range(digits):
        counts[value] = 0
    for i in range(n):
        counts[(np.uint64(words[i]) >> shift) & (digits - np.uint64(1))] += np.uint32(1)
    total = np.uint32(0)
    for value in range(digits):
        count = counts[value]
        counts[value] = total
        total = np.uint32(total + count)
    for i in range(n):
        at = (np.uint64(words[i]) >> shift) & (digits - np.uint64(1))
        to = counts[at]
        counts[at] = np.uint32(to + np.uint32(1))
        out_words[to] = words[i]
        if payload is not None:
            out_payload[to] = payload[i]


@inlined
def _insertion_sort(words: Any, payload: Any, low: Any, budget: Any) -> Any:
    """Stable; gives up, and returns False, after ``budget`` moves. What it leaves then is a stable permutation too."""
    one, moves, low = np.uint64(1), np.uint64(0), np.uint64(low)
    for i in range(one, np.uint64(words.size)):
        word = words[i]
        key = np.uint64(word) >> low
        if np.uint64(words[i - one]) >> low > key:
            if payload is not None:
                load: Any = payload[i]
            j: Any = i
            while j > 0 and np.uint64(words[j - one]) >> low > key:
                words[j] = words[j - one]
                if payload is not None:
                    payload[j] = payload[j - one]
                j -= one
            words[j] = word
            if payload is not None:
                payload[j] = load
            moves += i - j
            if moves > budget:
                return False
    return True
