"""topk: guess a threshold from a sample, keep what reaches it in one filtering pass, and select exactly among that.

Where the guess fails (ties, constant or adversarial input), the exact threshold comes from histograms of the magnitude's bits.
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

Array = NDArray[Any]
Index = NDArray[np.int64]

_LINES, _LINE = 4096, 8  # the sample: so many places, so many neighbours at each; more where k is large
_PIECE = 1 << 18  # elements that one kernel call looks at
_CHUNK = 1 << 12  # elements that the filter flags together, in the first-level cache
_MANY = 0.001  # where more than this share of the elements is wanted, a larger sample saves more than it costs
_SMALL = 1 << 12  # one array of up to so many elements goes a short way, for the calls around kernels would cost most
_DIGIT = 16  # bits of the magnitude that one histogram pass decides

_UNSIGNED, _SIGNED, _FLOAT = 0, 1, 2
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


class _Order(NamedTuple):
    """How the bits of a dtype become a magnitude, as the kernels want to be told."""

    sort: int
    all_but_sign: np.uint64
    infinity: np.uint64


class _Piece(NamedTuple):
    array: int
    lo: int
    hi: int


class _Found(NamedTuple):
    """Positions, ascending array by array; those of array i are ``positions[bounds[i]:bounds[i + 1]]``."""

    positions: Index
    bounds: Index


def topk(arrays: Sequence[Array], k: int, *, dtype: str) -> list[Index]:
    raw = [a.view(f"u{a.itemsize}") for a in arrays]
    bits = 8 * raw[0].itemsize
    sort = _FLOAT if dtype in _INFINITY else _UNSIGNED if dtype[0] in "bu" else _SIGNED
    order = _Order(sort, np.uint64(2 ** (bits - 1) - 1), np.uint64(_INFINITY.get(dtype, 0)))
    if len(raw) == 1 and raw[0].size <= _SMALL:
        return [_select_small(raw[0], k, order)]
    shares = _shares(raw)
    threshold = _guess(raw, k, order)
    with Scratch() as scratch:
        found = None if threshold is None else _select_by_filter(raw, shares, k, threshold, order, scratch)
    if found is None:
        found = _select_by_histogram(raw, shares, k, bits, order)
    return [found.positions[lo:hi] for lo, hi in zip(found.bounds[:-1], found.bounds[1:], strict=True)]


def _select_small(a: Array, k: int, order: _Order) -> Index:
    magnitudes = _magnitudes(a, *order)
    last = np.partition(magnitudes, a.size - k)[a.size - k]
    positions = np.empty(k, np.int64)
    _write(a, 0, a.size, np.uint64(last), k - np.count_nonzero(magnitudes > last), *order, positions)
    return positions


@kernel
def _magnitudes(a: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    out = np.empty(a.size, a.dtype)
    for i in range(np.uint64(a.size)):
        out[i] = magnitude(a[i], sort, all_but_sign, infinity)
    return out


def _shares(raw: Sequence[Array]) -> list[list[_Piece]]:
    """The arrays cut into pieces, in order, and the pieces shared out to the threads."""
    pieces = [_Piece(i, lo, min(lo + _PIECE, a.size)) for i, a in enumerate(raw) for lo in range(0, a.size, _PIECE)]
    ends = np.cumsum([p.hi - p.lo for p in pieces])
    cuts = [int(np.searchsorted(ends, hi)) + 1 for _, hi in _pool.ranges(int(ends[-1]), 1 << 16)]
    shares = [pieces[first:last] for first, last in zip([0, *cuts[:-1]], cuts, strict=True)]
    return [share for share in shares if share]


@inlined
def magnitude(x: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    """Unsigned integers that compare as magnitudes do: -0.0 as 0.0, all NaN alike and above infinity, int8 -128 as 128."""
    bits = np.uint64(x)
    if sort == _FLOAT:
        return min(bits & all_but_sign, infinity + np.uint64(1))
    if sort == _SIGNED and bits > all_but_sign:
        return all_but_sign + all_but_sign + np.uint64(2) - bits
    return bits


@inlined
def _flag(block: Any, threshold: Any, sort: Any, mask: Any, flags: Any) -> None:
    """Which magnitudes of a block reach the threshold; in its own dtype, one loop a sort, for vectors."""
    own = block.dtype.type
    if sort == _FLOAT:  # NaN need not be made alike: each is above infinity
        for i in range(np.uint64(block.size)):
            flags[i] = own(block[i] & mask) >= threshold
    elif sort == _SIGNED:
        for i in range(np.uint64(block.size)):
            x = block[i]
            flags[i] = own(own(~x) + own(1) if x > mask else x) >= threshold
    else:
        for i in range(np.uint64(block.size)):
            flags[i] = block[i] >= threshold


def _guess(raw: Sequence[Array], k: int, order: _Order) -> np.uint64 | None:
    """A magnitude that at least k entries reach, and not many more; None where that cannot be had from a sample."""
    n = sum(a.size for a in raw)
    if n <= _LINES * _LINE:
        return np.uint64(0)
    if k > n // 2:
        return None
    drawn = np.sort(np.random.default_rng(0).integers(0, n, _LINES if k <= _MANY * n else 2 * _LINES))
    ends = np.cumsum([a.size for a in raw])
    cuts = np.searchsorted(drawn, ends).tolist()
    lines = zip(raw, ends.tolist(), [0, *cuts[:-1]], cuts, strict=True)
    sample = np.concatenate([_sample(a, drawn[i:j] - (end - a.size), *order) for a, end, i, j in lines if i < j])
    expected = sample.size * k / n
    rank = math.ceil(expected + 4 * math.sqrt(expected * _LINE / 2) + 8)  # neighbours may be alike: a wider margin
    if rank >= sample.size:
        return None
    sample.partition(sample.size - rank)
    threshold = sample[sample.size - rank]
    return np.uint64(threshold) if threshold else None  # all zeros reach 0: ties for the histogram


@kernel
def _sample(a: Any, starts: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    """The magnitudes of a line of neighbours from each start; a line ends where the array does."""
    out, n = np.empty(starts.size * _LINE, a.dtype), 0
    for start in starts:
        for i in range(start, min(start + _LINE, a.size)):
            out[n] = magnitude(a[i], sort, all_but_sign, infinity)
            n += 1
    return out[:n]


def _select_by_filter(
    raw: Sequence[Array], shares: list[list[_Piece]], k: int, threshold: np.uint64, order: _Order, scratch: Scratch
) -> _Found | None:
    """Exact, if k entries reach the threshold and not far too many; else None."""
    n = sum(a.size for a in raw)
    limit = n if not threshold else min(n, 2 * k + (1 << 16))
    results = _pool.run([partial(_filter_share, raw, share, k / n, limit, threshold, order, scratch) for share in shares])
    if any(result is None for result in results):
        return None
    magnitudes = np.concatenate([r.magnitudes for r in results])
    if not k <= magnitudes.size <= limit:
        return None
    magnitudes.partition(magnitudes.size - k)
    last = magnitudes[magnitudes.size - k]
    quota = k - np.count_nonzero(magnitudes > last)
    kept = np.empty(k, np.int64)
    bounds = np.zeros(len(raw) + 1, np.int64)
    filled = 0
    for share, result in zip(shares, results, strict=True):
        bases = np.array([(p.array, p.lo) for p in share], np.int64)
        filled, quota = _keep(*result, bases, last, quota, kept, filled, bounds)
    return _Found(kept, np.cumsum(bounds))


@kernel
def _keep(
    positions: Any, magnitudes: Any, ends: Any, bases: Any, last: Any, quota: Any, kept: Any, filled: Any, per_array: Any
) -> Any:
    """Append the positions of what is larger than ``last``, and of the first ``quota`` that equal it; (filled, quota) after."""
    begin, one = 0, np.uint64(1)
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
    return filled, quota


class _Candidates(NamedTuple):
    """What reached the threshold in the pieces of a share; those of piece i end at ``ends[i]``."""

    positions: Array  # uint32, from the piece's start
    magnitudes: Array
    ends: Index


def _filter_share(
    raw: Sequence[Array], share: list[_Piece], density: float, limit: int, threshold: np.uint64, order: _Order, scratch: Scratch
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


def _select_by_histogram(raw: Sequence[Array], shares: list[list[_Piece]], k: int, bits: int, order: _Order) -> _Found:
    """Exact for any input: 16 bits of the k-th magnitude a pass, then a pass that counts and one that writes."""
    prefix, wanted = 0, k  # the wanted-th largest among the magnitudes that begin with prefix
    for shift in range(max(0, bits - _DIGIT), -1, -_DIGIT):
        histograms = _pool.run([partial(_count_digits, raw, share, shift, prefix, order) for share in shares])
        from_top = np.cumsum(np.sum(histograms, axis=0)[::-1])
        rank = int(np.searchsorted(from_top, wanted))
        wanted -= int(from_top[rank - 1]) if rank else 0
        prefix = prefix << _DIGIT | (from_top.size - 1 - rank)
    last = np.uint64(prefix)
    pieces = [piece for share in shares for piece in share]
    counted = _pool.run([partial(_count_pieces, raw, share, last, order) for share in shares])
    larger, ties = np.array([c for share in counted for c in share], np.int64).T
    quota = np.clip(wanted - (np.cumsum(ties) - ties), 0, ties)  # earlier pieces first
    ends = np.cumsum(larger + quota)
    positions = np.empty(k, np.int64)
    jobs = iter(zip(pieces, quota.tolist(), (ends - larger - quota).tolist(), ends.tolist(), strict=True))
    _pool.run([partial(_write_share, raw, [next(jobs) for _ in share], last, order, positions) for share in shares])
    per_array = np.zeros(len(raw) + 1, np.int64)
    np.add.at(per_array, [p.array + 1 for p in pieces], larger + quota)
    return _Found(positions, np.cumsum(per_array))


def _count_digits(raw: Sequence[Array], share: list[_Piece], shift: int, prefix: int, order: _Order) -> Index:
    counts = np.zeros(1 << _DIGIT, np.int64)
    for array, lo, hi in share:
        _histogram(raw[array], lo, hi, np.uint64(shift), np.uint64(prefix), *order, counts)
    return counts


@kernel
def _histogram(
    a: Any, lo: Any, hi: Any, shift: Any, prefix: Any, sort: Any, all_but_sign: Any, infinity: Any, counts: Any
) -> None:
    for i in range(np.uint64(lo), np.uint64(hi)):
        rest = magnitude(a[i], sort, all_but_sign, infinity) >> shift
        if rest >> np.uint64(_DIGIT) == prefix:
            counts[rest & np.uint64((1 << _DIGIT) - 1)] += 1


def _count_pieces(raw: Sequence[Array], share: list[_Piece], last: np.uint64, order: _Order) -> list[tuple[int, int]]:
    return [_count(raw[array], lo, hi, last, *order) for array, lo, hi in share]


@kernel
def _count(a: Any, lo: Any, hi: Any, last: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    larger, ties = 0, 0
    for i in range(np.uint64(lo), np.uint64(hi)):
        m = magnitude(a[i], sort, all_but_sign, infinity)
        larger += m > last
        ties += m == last
    return larger, ties


def _write_share(
    raw: Sequence[Array], jobs: list[tuple[_Piece, int, int, int]], last: np.uint64, order: _Order, positions: Index
) -> None:
    for (array, lo, hi), quota, begin, end in jobs:
        if end > begin:
            _write(raw[array], lo, hi, last, quota, *order, positions[begin:end])


@kernel
def _write(a: Any, lo: Any, hi: Any, last: Any, quota: Any, sort: Any, all_but_sign: Any, infinity: Any, out: Any) -> None:
    """Positions of what is larger than ``last``, and of the first ``quota`` that equal it."""
    filled = 0
    for i in range(lo, hi):
        m = magnitude(a[i], sort, all_but_sign, infinity)
        if m > last or (m == last and quota > 0):
            quota -= m == last
            out[filled] = i
            filled += 1
            if filled == out.size:
                return
