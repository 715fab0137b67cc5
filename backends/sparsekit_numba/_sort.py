"""A stable parallel sort of (key, payload) pairs: one partition by the high bits, then radix sorts that stay in cache."""

import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._jit import inlined, kernel
from sparsekit_numba._scratch import Scratch

Array = NDArray[Any]

_SERIAL = 1 << 14  # fewer pairs than this are sorted by one thread, without a partition
_BUCKET_BITS = 14  # the partition aims at buckets of this many pairs, which fit the second-level cache
_MOST_BUCKET_BITS = 9  # more buckets than 512 are written to slower than they save


class Sorted(NamedTuple):
    """Pairs in key order. Bucket b holds ``bounds[b]:bounds[b + 1]``; a full key is ``prefixes[b] | keys[i]``."""

    keys: Array  # what the partition left of the keys: uint32 or uint64
    payload: Array
    bounds: NDArray[np.int64]
    prefixes: NDArray[np.uint64]


def sort_pairs(keys: Array, payload: Array | None, bits: int, scratch: Scratch) -> Sorted:
    """Sort by the lowest ``bits`` bits of the keys (uint32 or uint64), which hold them whole; equal keys keep their order.

    Without a payload the pairs carry their positions. ``keys`` may be overwritten, ``payload`` is not; the result is scratch.
    Cost: about 4 reads and writes of the pairs; extra memory: one copy of the pairs.
    """
    n = keys.size
    if n < _SERIAL:
        moved = np.arange(n, dtype=_position_dtype(n)) if payload is None else payload.copy()
        result = Sorted(keys, moved, np.array([0, n]), np.zeros(1, np.uint64))
        _sort_buckets(result, bits, scratch)
        return result
    high = max(6, n.bit_length() - _BUCKET_BITS)
    if bits - 32 <= _MOST_BUCKET_BITS:
        high = max(high, bits - 32)  # then what is left of the keys fits 32 bits
    high = min(bits, high, _MOST_BUCKET_BITS)
    rest = bits - high
    out_keys = scratch.empty(n, np.uint32 if rest <= 32 else np.uint64)
    out_payload = scratch.empty(n, _position_dtype(n) if payload is None else payload.dtype)
    bounds = _scatter(keys, payload, rest, high, (1 << rest) - 1, out_keys, out_payload)
    prefixes = np.arange(1 << high, dtype=np.uint64) << np.uint64(min(rest, 63))
    result = Sorted(out_keys, out_payload, bounds, prefixes)
    if rest:
        _sort_buckets(result, rest, scratch)
    return result


def _position_dtype(n: int) -> type:
    return np.uint32 if n <= 1 << 32 else np.uint64


def _scatter(
    keys: Array, payload: Array | None, shift: int, width: int, keep: int, out_keys: Array, out_payload: Array
) -> NDArray[np.int64]:
    """Distribute pairs by ``width`` bits of their keys above ``shift``, stably; ``keep`` masks what is left of the keys.

    Returns where each bucket starts, and the end.
    """
    parts = _pool.ranges(keys.size, _SERIAL // 2)
    counts = np.zeros((len(parts), 1 << width), np.int64)
    _pool.run([partial(_count, keys, shift, row, lo, hi) for row, (lo, hi) in zip(counts, parts, strict=True)])
    ends = np.cumsum(counts.T).reshape(counts.T.shape).T  # bucket by bucket, in each the parts in order
    starts = np.ascontiguousarray(ends - counts)
    bounds = np.append(starts[0], keys.size)
    _pool.run(
        [
            partial(_move, keys, payload, shift, np.uint64(keep), row, out_keys, out_payload, lo, hi)
            for row, (lo, hi) in zip(starts, parts, strict=True)
        ]
    )
    return bounds


@kernel
def _count(keys: Any, shift: Any, counts: Any, lo: Any, hi: Any) -> None:
    mask = np.uint64(counts.size - 1)
    for i in range(np.uint64(lo), np.uint64(hi)):
        counts[(np.uint64(keys[i]) >> np.uint64(shift)) & mask] += 1


@kernel
def _move(keys: Any, payload: Any, shift: Any, keep: Any, at: Any, out_keys: Any, out_payload: Any, lo: Any, hi: Any) -> None:
    mask = np.uint64(at.size - 1)
    for i in range(np.uint64(lo), np.uint64(hi)):
        digit = (np.uint64(keys[i]) >> np.uint64(shift)) & mask
        to = np.uint64(at[digit])
        at[digit] = to + np.uint64(1)
        out_keys[to] = keys[i] & keep
        out_payload[to] = i if payload is None else payload[i]


def _sort_buckets(pairs: Sorted, bits: int, scratch: Scratch) -> None:
    """Sort each bucket in place: large ones by all threads together, the others shared out."""
    bounds = pairs.bounds
    sizes = np.diff(bounds)
    fair = max(1 << 16, pairs.keys.size // (2 * _pool.num_threads()))
    for b in np.flatnonzero(sizes > fair) if _pool.num_threads() > 1 else ():
        _sort_large(pairs.keys[bounds[b] : bounds[b + 1]], pairs.payload[bounds[b] : bounds[b + 1]], bits, scratch)
        sizes[b] = 0
    work = np.concatenate([[0], np.cumsum(sizes)])
    pieces = _pool.ranges(int(work[-1]), _SERIAL // 2)
    cuts = [0, *(int(np.searchsorted(work, hi)) for _, hi in pieces[:-1]), sizes.size]
    tasks = []
    for first, last in itertools.pairwise(cuts):
        largest = int(sizes[first:last].max(initial=0))
        spare = scratch.empty(largest, pairs.keys.dtype), scratch.empty(largest, pairs.payload.dtype)
        counts = np.empty(1 << _WIDEST, np.uint32)
        tasks.append(partial(radix_sort, pairs.keys, pairs.payload, *spare, counts, bounds, sizes, first, last, bits))
    _pool.run(tasks)


def _sort_large(keys: Array, payload: Array, bits: int, scratch: Scratch) -> None:
    """Radix sort with all threads, lowest digit first."""
    source = keys, payload
    target = scratch.empty(keys.size, keys.dtype), scratch.empty(payload.size, payload.dtype)
    for shift in range(0, bits, _WIDEST):
        _scatter(*source, shift, min(_WIDEST, bits - shift), 2**64 - 1, *target)
        source, target = target, source
    if source[0] is not keys:
        keys[:], payload[:] = source


_WIDEST = 11  # bits of a digit at most
_NARROW = 9  # bits of a digit whose 512 places to write to stay in the first-level cache
_SHORT = 40  # pairs that are sorted by insertion


@kernel
def radix_sort(
    keys: Any,
    payload: Any,
    spare_keys: Any,
    spare_payload: Any,
    counts: Any,
    bounds: Any,
    sizes: Any,
    first: Any,
    last: Any,
    bits: Any,
) -> None:
    """Sort buckets first <= b < last in place, those of size 0 aside.

    Few bits: radix passes on all of them. Many: two passes on the highest, about as many as tell n keys apart, then insertion for
    what is left; where that takes too long (keys that agree in their high bits), passes on all bits after all.
    """
    for b in range(first, last):
        n = np.uint64(sizes[b])
        if n < 2:
            continue
        lo = np.uint64(bounds[b])
        k, p = keys[lo : lo + n], payload[lo : lo + n]
        if n <= _SHORT:
            _insertion_sort(k, p, n * n)
            continue
        k2, p2 = spare_keys[:n], spare_payload[:n]
        width = 6
        while width < _WIDEST and (1 << (2 * width)) < 2 * n:
            width += 1
        if bits > 3 * _NARROW:
            _radix_pass(k, p, k2, p2, counts, bits - 2 * width, width)
            _radix_pass(k2, p2, k, p, counts, bits - width, width)
            if _insertion_sort(k, p, 4 * n):
                continue
        passes = (bits + _NARROW - 1) // _NARROW
        width = (bits + passes - 1) // passes
        for digit in range(passes):
            _radix_pass(k, p, k2, p2, counts, digit * width, min(width, bits - digit * width))
            k, k2, p, p2 = k2, k, p2, p
        if passes % 2:  # the result is in the spare arrays
            for i in range(n):
                k2[i], p2[i] = k[i], p[i]


@inlined
def _radix_pass(keys: Any, payload: Any, out_keys: Any, out_payload: Any, counts: Any, shift: Any, width: Any) -> None:
    """Stable distribution by one digit."""
    n, digits = np.uint64(keys.size), np.uint64(1 << width)
    shift = np.uint64(shift)
    for value in range(digits):
        counts[value] = 0
    for i in range(n):
        counts[(np.uint64(keys[i]) >> shift) & (digits - np.uint64(1))] += np.uint32(1)
    total = np.uint32(0)
    for value in range(digits):
        count = counts[value]
        counts[value] = total
        total = np.uint32(total + count)
    for i in range(n):
        at = (np.uint64(keys[i]) >> shift) & (digits - np.uint64(1))
        to = counts[at]
        counts[at] = np.uint32(to + np.uint32(1))
        out_keys[to], out_payload[to] = keys[i], payload[i]


@inlined
def _insertion_sort(keys: Any, payload: Any, budget: Any) -> Any:
    """Stable; gives up, and returns False, after ``budget`` moves. What it leaves then is a stable permutation too."""
    one, moves = np.uint64(1), np.uint64(0)
    for i in range(one, np.uint64(keys.size)):
        key = keys[i]
        if keys[i - one] > key:
            load: Any = payload[i]
            j: Any = i
            while j > 0 and keys[j - one] > key:
                keys[j], payload[j] = keys[j - one], payload[j - one]
                j -= one
            keys[j], payload[j] = key, load
            moves += i - j
            if moves > budget:
                return False
    return True
