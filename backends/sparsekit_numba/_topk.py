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

Array = NDArray[Any]
Index = NDArray[np.int64]

_LINES, _LINE = 4096, 8  # the sample: so many places, so many neighbours at each
_PIECE = 1 << 18  # elements that one kernel call looks at
_STRIDE, _STEP = 256, 32  # elements that the filter skips together; where it cannot, in steps
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
    shares = _shares(raw)
    threshold = _guess(raw, k, order)
    found = None if threshold is None else _select_by_filter(raw, shares, k, threshold, order)
    if found is None:
        found = _select_by_histogram(raw, shares, k, bits, order)
    return [found.positions[lo:hi] for lo, hi in zip(found.bounds[:-1], found.bounds[1:], strict=True)]


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
def _largest(block: Any, sort: Any, all_but_sign: Any) -> Any:
    """The largest magnitude of a block, NaN not yet made alike; one loop a sort, in its own dtype, for vectors."""
    own = block.dtype.type
    mask, top = own(all_but_sign), own(0)
    if sort == _FLOAT:
        for i in range(np.uint64(block.size)):
            x = own(block[i] & mask)
            top = x if x > top else top
    elif sort == _SIGNED:
        for i in range(np.uint64(block.size)):
            x = block[i]
            x = own(~x) + own(1) if x > mask else x
            top = own(x) if own(x) > top else top
    else:
        for i in range(np.uint64(block.size)):
            x = block[i]
            top = x if x > top else top
    return np.uint64(top)


def _guess(raw: Sequence[Array], k: int, order: _Order) -> np.uint64 | None:
    """A magnitude that at least k entries reach, and not many more; None where that cannot be had from a sample."""
    n = sum(a.size for a in raw)
    if n <= _LINES * _LINE:
        return np.uint64(0)
    if k > n // 2:
        return None
    rng = np.random.default_rng(0)
    lines = [(a, np.sort(rng.integers(0, max(1, a.size - _LINE), math.ceil(_LINES * a.size / n)))) for a in raw if a.size]
    sample = np.concatenate([_sample(a, starts, *order) for a, starts in lines])
    expected = sample.size * k / n
    rank = math.ceil(expected + 4 * math.sqrt(expected * _LINE / 2) + 8)  # neighbours may be alike: a wider margin
    if rank >= sample.size:
        return None
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    return np.uint64(threshold) if threshold else None  # all zeros reach 0: ties for the histogram


@kernel
def _sample(a: Any, starts: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    length = min(_LINE, a.size)
    out = np.empty(starts.size * length, np.uint64)
    for i in range(starts.size):
        for j in range(length):
            out[i * length + j] = magnitude(a[starts[i] + j], sort, all_but_sign, infinity)
    return out


def _select_by_filter(
    raw: Sequence[Array], shares: list[list[_Piece]], k: int, threshold: np.uint64, order: _Order
) -> _Found | None:
    """Exact, if k entries reach the threshold and not far too many; else None."""
    n = sum(a.size for a in raw)
    limit = n if not threshold else min(n, 2 * k + (1 << 16))
    results = _pool.run([partial(_filter_share, raw, share, k / n, limit, threshold, order) for share in shares])
    if any(result is None for result in results):
        return None
    positions = np.concatenate([r[0] for r in results])
    magnitudes = np.concatenate([r[1] for r in results])
    if not k <= positions.size <= limit:
        return None
    last = np.partition(magnitudes, positions.size - k)[positions.size - k]
    larger = np.count_nonzero(magnitudes > last)
    kept = np.empty(k, np.int64)
    _keep(magnitudes, last, k - larger, kept)
    ends = np.cumsum(np.sum([r[2] for r in results], axis=0))
    return _Found(positions[kept], np.concatenate([[0], np.searchsorted(kept, ends)]))


@kernel
def _keep(magnitudes: Any, last: Any, quota: Any, kept: Any) -> None:
    """Which are larger than ``last``, and the first ``quota`` that equal it."""
    filled = 0
    for i in range(np.uint64(magnitudes.size)):
        if magnitudes[i] >= last:
            tie = magnitudes[i] == last
            if not tie or quota > 0:
                quota -= tie
                kept[filled] = i
                filled += 1


def _filter_share(
    raw: Sequence[Array], share: list[_Piece], density: float, limit: int, threshold: np.uint64, order: _Order
) -> tuple[Index, Array, Index] | None:
    """(positions, magnitudes, how many an array) of the entries that reach the threshold; None beyond the limit."""
    total = sum(p.hi - p.lo for p in share)
    room = min(total, int(1.5 * density * total) + 1024) + _STRIDE if threshold else total + _STRIDE
    positions, magnitudes = np.empty(room, np.int64), np.empty(room, raw[0].dtype)
    per_array = np.zeros(len(raw), np.int64)
    filled = 0
    for piece in share:
        before, at = filled, piece.lo
        while True:
            at, filled = _filter(raw[piece.array], at, piece.hi, threshold, *order, positions, magnitudes, filled)
            if at == piece.hi:
                break
            if filled > limit:
                return None
            positions, magnitudes = (np.concatenate([x, np.empty_like(x)]) for x in (positions, magnitudes))
        per_array[piece.array] += filled - before
    return positions[:filled], magnitudes[:filled], per_array


@kernel
def _filter(
    a: Any,
    lo: Any,
    hi: Any,
    threshold: Any,
    sort: Any,
    all_but_sign: Any,
    infinity: Any,
    positions: Any,
    magnitudes: Any,
    filled: Any,
) -> Any:
    """Append what reaches the threshold; returns (where it stopped for want of room, or hi; entries in all)."""
    at = lo
    while at < hi:
        end = min(at + _STRIDE, hi)
        if _largest(a[at:end], sort, all_but_sign) >= threshold:
            if filled + _STRIDE > positions.size:
                return at, filled
            while at < end:
                stop = min(at + _STEP, end)
                if _largest(a[at:stop], sort, all_but_sign) >= threshold:
                    for i in range(np.uint64(at), np.uint64(stop)):  # every entry is written, what does not count over again
                        m = magnitude(a[i], sort, all_but_sign, infinity)
                        positions[filled], magnitudes[filled] = i, m
                        filled += m >= threshold
                at = stop
        at = end
    return hi, filled


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
