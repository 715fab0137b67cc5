"""topk: guess a threshold from a sample, keep what reaches it in one filtering pass, and select exactly among that.

Where the guess fails (ties, constant or adversarial input), all of it is counted: ``_topk_exact``.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._jit import inlined, kernel
from sparsekit_numba._scratch import Scratch
from sparsekit_numba._topk_exact import (
    FLOAT,
    INFINITY,
    SIGNED,
    UNSIGNED,
    Found,
    Order,
    Piece,
    count,
    digit_of,
    magnitude,
    select_by_count,
    write,
)

Array = NDArray[Any]
Index = NDArray[np.int64]

_LINES, _LINE = (1 << 10, 1 << 12), 8  # the sample: from so many to so many places, so many neighbours at each
_PIECE = 1 << 18  # elements that one kernel call looks at
_CHUNK = 1 << 12  # elements that the filter flags together, in the first-level cache
_MANY = 0.001  # where more than this share of the elements is wanted, a larger sample saves more than it costs
_SMALL = 1 << 12  # one array of up to so many elements goes a short way, for the calls around kernels would cost most
_FINE = 12  # bits that one histogram pass over the candidates decides
_FEW = 1 << 15  # so many candidates are settled sooner than a second thread wakes


def topk(arrays: Sequence[Array], k: int, *, dtype: str) -> list[Index]:
    raw = [a.view(f"u{a.itemsize}") for a in arrays]
    bits = 8 * raw[0].itemsize
    sort = FLOAT if dtype in INFINITY else UNSIGNED if dtype[0] in "bu" else SIGNED
    order = Order(sort, np.uint64(2 ** (bits - 1) - 1), np.uint64(INFINITY.get(dtype, 0)))
    if len(raw) == 1 and raw[0].size <= _SMALL:
        return [_select_small(raw[0], k, order)]
    shares = _shares(raw)
    sample = _draw(raw, k, order)
    threshold = _guess(sample, k, sum(a.size for a in raw))
    with Scratch() as scratch:
        found = None if threshold is None else _select_by_filter(raw, shares, k, threshold, order, scratch)
    if found is None:
        found = select_by_count(raw, shares, k, sample, bits, order)
    return [found.positions[lo:hi] for lo, hi in zip(found.bounds[:-1], found.bounds[1:], strict=True)]


def _select_small(a: Array, k: int, order: Order) -> Index:
    magnitudes = _magnitudes(a, *order)
    last = np.partition(magnitudes, a.size - k)[a.size - k]
    positions = np.empty(k, np.int64)
    write(a, 0, a.size, np.uint64(last), k - np.count_nonzero(magnitudes > last), *order, positions)
    return positions


@kernel
def _magnitudes(a: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    out = np.empty(a.size, a.dtype)
    for i in range(np.uint64(a.size)):
        out[i] = magnitude(a[i], sort, all_but_sign, infinity)
    return out


def _shares(raw: Sequence[Array]) -> list[list[Piece]]:
    """The arrays cut into pieces, in order, and the pieces shared out to the threads."""
    pieces = [Piece(i, lo, min(lo + _PIECE, a.size)) for i, a in enumerate(raw) for lo in range(0, a.size, _PIECE)]
    ends = np.cumsum([p.hi - p.lo for p in pieces])
    cuts = [int(np.searchsorted(ends, hi)) + 1 for _, hi in _pool.ranges(int(ends[-1]), 1 << 16)]
    shares = [pieces[first:last] for first, last in zip([0, *cuts[:-1]], cuts, strict=True)]
    return [share for share in shares if share]


@inlined
def _flag(block: Any, threshold: Any, sort: Any, mask: Any, flags: Any) -> None:
    """Which magnitudes of a block reach the threshold; in its own dtype, one loop a sort, for vectors."""
    own = block.dtype.type
    if sort == FLOAT:  # NaN need not be made alike: each is above infinity
        for i in range(np.uint64(block.size)):
            flags[i] = own(block[i] & mask) >= threshold
    elif sort == SIGNED:
        for i in range(np.uint64(block.size)):
            x = block[i]
            flags[i] = own(own(~x) + own(1) if x > mask else x) >= threshold
    else:
        for i in range(np.uint64(block.size)):
            flags[i] = block[i] >= threshold


def _draw(raw: Sequence[Array], k: int, order: Order) -> Array:
    """A sample of the magnitudes; none where it would not be much smaller than the whole."""
    n = sum(a.size for a in raw)
    lines = max(_LINES[0], min(_LINES[1], n >> 10)) * (1 if k <= _MANY * n else 2)
    if n <= 4 * lines * _LINE:
        return np.empty(0, raw[0].dtype)
    ends = np.cumsum([a.size for a in raw]).tolist()
    return np.concatenate([_sample(a, end - a.size, n // lines, *order) for a, end in zip(raw, ends, strict=True) if a.size])


def _guess(sample: Array, k: int, n: int) -> np.uint64 | None:
    """A magnitude that at least k of n entries reach, and not many more; None where that cannot be had from the sample."""
    if not sample.size:
        return np.uint64(0)
    expected = sample.size * k / n
    rank = math.ceil(expected + 4 * math.sqrt(expected * _LINE / 2) + 8)  # neighbours may be alike: a wider margin
    if k > n // 2 or rank >= sample.size:
        return None
    sample.partition(sample.size - rank)
    threshold = sample[sample.size - rank]
    return np.uint64(threshold) if threshold else None  # all reach 0, and most may be 0


@kernel
def _sample(a: Any, base: Any, stride: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    """The magnitudes of a line of neighbours somewhere in each stride of the whole, of which ``a`` begins at ``base``."""
    first, last = base // stride, (base + a.size - 1) // stride
    out, n = np.empty((last - first + 1) * _LINE, a.dtype), 0
    for number in range(first, last + 1):
        hashed = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)  # Fibonacci hashing
        start = number * stride + np.int64(hashed * np.uint64(stride) >> np.uint64(32)) - base
        if start >= 0:
            for i in range(start, min(start + _LINE, a.size)):  # a line ends where the array does
                out[n] = magnitude(a[i], sort, all_but_sign, infinity)
                n += 1
    return out[:n]


def _select_by_filter(
    raw: Sequence[Array], shares: list[list[Piece]], k: int, threshold: np.uint64, order: Order, scratch: Scratch
) -> Found | None:
    """Exact, if k entries reach the threshold and not far too many; else None."""
    n = sum(a.size for a in raw)
    limit = n if not threshold else min(n, 2 * k + (1 << 16))
    results = _pool.run([partial(_filter_share, raw, share, k / n, limit, threshold, order, scratch) for share in shares])
    if any(result is None for result in results):
        return None
    total = sum(r.magnitudes.size for r in results)
    if not k <= total <= limit:
        return None
    run = _pool.run if total > _FEW else _one_by_one
    last, wanted = _kth([r.magnitudes for r in results], k, int(threshold))
    counted = run([partial(count, r.magnitudes, 0, r.magnitudes.size, last, UNSIGNED, last, last) for r in results])
    larger, ties = np.array(counted, np.int64).T
    quota = np.clip(wanted - (np.cumsum(ties) - ties), 0, ties)  # earlier shares first
    sizes = larger + quota
    kept, per_array = np.empty(k, np.int64), np.zeros((len(shares), len(raw) + 1), np.int64)
    tasks = []
    for share, result, n_ties, end, size, row in zip(shares, results, quota, np.cumsum(sizes), sizes, per_array, strict=True):
        bases = np.array([(p.array, p.lo) for p in share], np.int64)
        tasks.append(partial(_keep, *result, bases, last, n_ties, kept[end - size : end], row))
    run(tasks)
    return Found(kept, np.cumsum(per_array.sum(axis=0)))


def _one_by_one(tasks: Sequence[_pool.Task]) -> list[Any]:
    return [task() for task in tasks]


def _kth(parts: list[Array], k: int, low: int) -> tuple[np.uint64, int]:
    """The k-th largest of some magnitudes >= low, and how many of its equals are among the k."""
    if sum(part.size for part in parts) <= _FEW:
        together = np.concatenate(parts)
        together.partition(together.size - k)
        last = together[together.size - k]
        return np.uint64(last), k - int(np.count_nonzero(together > last))
    high = max(int(part.max()) for part in parts if part.size)
    while True:
        shift = max(0, (high - low).bit_length() - _FINE)
        histograms = _pool.run([partial(_spread, part, np.uint64(low), np.uint64(high), np.uint64(shift)) for part in parts])
        digit, k = digit_of(k, histograms)
        low += digit << shift
        if not shift:
            return np.uint64(low), k
        high = min(high, low + (1 << shift) - 1)


@kernel
def _spread(magnitudes: Any, low: Any, high: Any, shift: Any) -> Any:
    """How many from low to high lie in each 2**shift of them."""
    counts = np.zeros(1 << _FINE, np.int64)
    for i in range(np.uint64(magnitudes.size)):
        m = np.uint64(magnitudes[i])
        if low <= m <= high:
            counts[(m - low) >> shift] += 1
    return counts


@kernel
def _keep(positions: Any, magnitudes: Any, ends: Any, bases: Any, last: Any, quota: Any, kept: Any, per_array: Any) -> None:
    """The positions of what is larger than ``last``, and of the first ``quota`` that equal it; how many more of each array."""
    begin, filled, one = 0, 0, np.uint64(1)
    for piece in range(ends.size):
        base, before = bases[piece, 1], filled
        for i in range(np.uint64(begin), np.uint64(ends[piece])):
            if magnitudes[i] >= last:
                tie = magnitudes[i] == last
                if not tie or quota > 0:
                    quota -= tie
                    kept[filled] = base + positions[i]
                    filled += 1
        per_array[np.uint64(bases[piece, 0]) + one] += filled - before
        begin = ends[piece]


class _Candidates(NamedTuple):
    """What reached the threshold in the pieces of a share; those of piece i end at ``ends[i]``."""

    positions: Array  # uint32, from the piece's start
    magnitudes: Array
    ends: Index


def _filter_share(
    raw: Sequence[Array], share: list[Piece], density: float, limit: int, threshold: np.uint64, order: Order, scratch: Scratch
) -> _Candidates | None:
    """None beyond the limit."""
    total = sum(p.hi - p.lo for p in share)
    room = min(total, int(1.3 * density * total) if threshold else total) + 2 * _CHUNK
    own = raw[0].dtype.type
    positions, magnitudes = scratch.empty(room, np.uint32), scratch.empty(room, own)
    flags, words = np.empty(_CHUNK, np.uint8), np.empty(_CHUNK // 8, np.uint64)
    scalars = own(threshold), *order, own(order.all_but_sign), flags, words
    ends = np.empty(len(share), np.int64)
    filled = 0
    for i, (array, lo, hi) in enumerate(share):
        at = lo
        while True:
            at, filled = _filter(raw[array], lo, at, hi, *scalars, positions, magnitudes, filled)
            if filled > limit:
                return None
            if at == hi:
                break
            positions, magnitudes = (np.concatenate([x, np.empty_like(x)]) for x in (positions, magnitudes))
        ends[i] = filled
    return _Candidates(positions[:filled], magnitudes[:filled], ends)


@kernel
def _filter(
    a: Any,
    base: Any,
    lo: Any,
    hi: Any,
    threshold: Any,
    sort: Any,
    all_but_sign: Any,
    infinity: Any,
    mask: Any,
    flags: Any,
    words: Any,
    positions: Any,
    magnitudes: Any,
    filled: Any,
) -> Any:
    """Append what reaches the threshold; returns (where it stopped for want of room, or hi; entries in all).

    Nothing here branches on the data: flags are looked at eight together, where one is set all eight entries are written, and
    what does not count is written over.
    """
    n, one, eight = np.uint64(filled), np.uint64(1), np.uint64(8)
    flagged = flags.view(np.uint64)
    for first in range(lo, hi, _CHUNK):
        size = np.uint64(min(_CHUNK, hi - first))
        if n + size > np.uint64(positions.size):
            return first, np.int64(n)
        start, listed = np.uint64(first), np.uint64(0)
        for i in range(size & ~np.uint64(7), min(size + eight, np.uint64(_CHUNK))):
            flags[i] = 0  # behind the end, up to a multiple of eight
        _flag(a[start : start + size], threshold, sort, mask, flags)
        for word in range((size + np.uint64(7)) // eight):
            words[listed] = word
            listed += np.uint64(flagged[word] != np.uint64(0))
        for w in range(listed):
            at = words[w] * eight
            for i in range(at, min(at + eight, size)):
                positions[n] = start + i - np.uint64(base)
                magnitudes[n] = magnitude(a[start + i], sort, all_but_sign, infinity)
                n += np.uint64(flags[i]) & one
    return hi, np.int64(n)
