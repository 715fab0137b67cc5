"""A stable parallel sort of (key, payload) pairs: one partition by the high bits, then radix sorts that stay in cache."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._jit import kernel

Array = NDArray[np.generic]

_SERIAL = 1 << 14  # fewer pairs than this are sorted by one thread, without a partition
_BUCKET_BITS = 14  # the partition aims at buckets of this many pairs, which fit the second-level cache


class Sorted(NamedTuple):
    """Pairs in key order. Bucket b holds ``bounds[b]:bounds[b + 1]``; a full key is ``prefixes[b] | keys[i]``."""

    keys: Array  # what the partition left of the keys: uint32 or uint64
    payload: Array
    bounds: NDArray[np.int64]
    prefixes: NDArray[np.uint64]


def sort_pairs(keys: Array, payload: Array | None, bits: int) -> Sorted:
    """Sort by the lowest ``bits`` bits of the keys (uint32 or uint64), which hold them whole; equal keys keep their order.

    Without a payload the pairs carry their positions. ``keys`` may be overwritten; ``payload`` is not.
    Cost: about 3 reads and writes of the pairs; extra memory: one copy of the pairs.
    """
    n = keys.size
    if n < _SERIAL:
        moved = np.arange(n, dtype=_position_dtype(n)) if payload is None else payload.copy()
        result = Sorted(keys, moved, np.array([0, n]), np.zeros(1, np.uint64))
        _sort_buckets(result, bits)
        return result
    high = min(bits, max(6, min(10, n.bit_length() - _BUCKET_BITS)))
    rest = bits - high
    out_keys = np.empty(n, np.uint32 if rest <= 32 else np.uint64)
    out_payload = np.empty(n, _position_dtype(n) if payload is None else payload.dtype)
    bounds = _scatter(keys, payload, rest, high, (1 << rest) - 1, out_keys, out_payload)
    prefixes = np.arange(1 << high, dtype=np.uint64) << np.uint64(min(rest, 63))
    result = Sorted(out_keys, out_payload, bounds, prefixes)
    if rest:
        _sort_buckets(result, rest)
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
def _move(
    keys: Any, payload: Any, shift: Any, keep: Any, at: Any, out_keys: Any, out_payload: Any, lo: Any, hi: Any
) -> None:
    mask = np.uint64(at.size - 1)
    for i in range(np.uint64(lo), np.uint64(hi)):
        digit = (np.uint64(keys[i]) >> np.uint64(shift)) & mask
        to = np.uint64(at[digit])
        at[digit] = to + np.uint64(1)
        out_keys[to] = keys[i] & keep
        out_payload[to] = i if payload is None else payload[i]


def _sort_buckets(pairs: Sorted, bits: int) -> None:
    """Sort each bucket in place: large ones by all threads together, the others shared out."""
    bounds = pairs.bounds
    sizes = np.diff(bounds)
    fair = max(1 << 16, pairs.keys.size // (2 * _pool.num_threads()))
    for b in np.flatnonzero(sizes > fair) if _pool.num_threads() > 1 else ():
        _sort_large(pairs.keys[bounds[b] : bounds[b + 1]], pairs.payload[bounds[b] : bounds[b + 1]], bits)
        sizes[b] = 0
    work = np.concatenate([[0], np.cumsum(sizes)])
    pieces = _pool.ranges(int(work[-1]), _SERIAL // 2)
    cuts = [0, *(int(np.searchsorted(work, hi)) for _, hi in pieces[:-1]), sizes.size]
    _pool.run(
        [
            partial(_sort_some, pairs, sizes, first, last, bits)
            for first, last in zip(cuts[:-1], cuts[1:], strict=True)
        ]
    )


def _sort_large(keys: Array, payload: Array, bits: int) -> None:
    """Radix sort with all threads, lowest digit first."""
    other_keys, other_payload = np.empty_like(keys), np.empty_like(payload)
    source, target = (keys, payload), (other_keys, other_payload)
    for shift in range(0, bits, 11):
        _scatter(*source, shift, min(11, bits - shift), 2**64 - 1, *target)
        source, target = target, source
    if source[0] is not keys:
        keys[:], payload[:] = source


def _sort_some(pairs: Sorted, sizes: NDArray[np.int64], first: int, last: int, bits: int) -> None:
    largest = int(sizes[first:last].max(initial=0))
    if largest > 1:
        radix_sort(
            pairs.keys,
            pairs.payload,
            np.empty(largest, pairs.keys.dtype),
            np.empty(largest, pairs.payload.dtype),
            np.empty((8, 1 << 11), np.int64),
            pairs.bounds,
            sizes,
            first,
            last,
            bits,
        )


@kernel
def radix_sort(
    keys: Any, payload: Any, tmp_keys: Any, tmp_payload: Any, counts: Any, bounds: Any, sizes: Any, first: Any, last: Any, bits: Any
) -> None:
    """Sort buckets first <= b < last in place, those of size 0 aside; insertion sort where short, else radix, low digit first."""
    for b in range(first, last):
        n = sizes[b]
        if n < 2:
            continue
        at = bounds[b]
        k, p = keys[at : at + n], payload[at : at + n]
        if n <= 40:
            for i in range(1, n):
                key, load = k[i], p[i]
                j = i
                while j > 0 and k[j - 1] > key:
                    k[j], p[j] = k[j - 1], p[j - 1]
                    j -= 1
                k[j], p[j] = key, load
            continue
        widest = 11 if n >= 4096 else 8
        passes = (bits + widest - 1) // widest
        width = (bits + passes - 1) // passes
        mask = np.uint64((1 << width) - 1)
        counts[:passes, : 1 << width] = 0
        for i in range(n):
            rest = np.uint64(k[i])
            for digit in range(passes):
                counts[digit, rest & mask] += 1
                rest >>= np.uint64(width)
        k2, p2 = tmp_keys[:n], tmp_payload[:n]
        for digit in range(passes):
            shift = np.uint64(digit * width)
            row = counts[digit]
            if row[(np.uint64(k[0]) >> shift) & mask] == n:
                continue  # all keys share this digit
            total = 0
            for value in range(1 << width):
                row[value], total = total, total + row[value]
            for i in range(n):
                value = (np.uint64(k[i]) >> shift) & mask
                to = row[value]
                row[value] = to + 1
                k2[to], p2[to] = k[i], p[i]
            k, k2, p, p2 = k2, k, p2, p
        # An odd number of passes leaves the result in the scratch arrays.
        if k.ctypes.data == tmp_keys.ctypes.data:
            k2[:], p2[:] = k, p
