"""topk for any input: what ties, and the order of the bits; slower than a guess from a sample, and exact whatever comes."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._jit import inlined, kernel

Array = NDArray[Any]
Index = NDArray[np.int64]

_DIGIT = 16  # bits of the magnitude that one histogram pass decides

UNSIGNED, SIGNED, FLOAT = 0, 1, 2
INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


class Order(NamedTuple):
    """How the bits of a dtype become a magnitude, as the kernels want to be told."""

    sort: int
    all_but_sign: np.uint64
    infinity: np.uint64


class Piece(NamedTuple):
    array: int
    lo: int
    hi: int


class Found(NamedTuple):
    """Positions, ascending array by array; those of array i are ``positions[bounds[i]:bounds[i + 1]]``."""

    positions: Index
    bounds: Index


@inlined
def magnitude(x: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    """Unsigned integers that compare as magnitudes do: -0.0 as 0.0, all NaN alike and above infinity, int8 -128 as 128."""
    bits = np.uint64(x)
    if sort == FLOAT:
        return min(bits & all_but_sign, infinity + np.uint64(1))
    if sort == SIGNED and bits > all_but_sign:
        return all_but_sign + all_but_sign + np.uint64(2) - bits
    return bits


def select_by_count(raw: Sequence[Array], shares: list[list[Piece]], k: int, sample: Array, bits: int, order: Order) -> Found:
    """Exact for any input: a pass that counts and one that writes.

    Where most entries tie, the k-th of the sample is the k-th of all; where it is not, that is found by histograms before.
    """
    n = sum(a.size for a in raw)
    rank = max(1, sample.size * k // n)
    last = np.uint64(np.partition(sample, sample.size - rank)[sample.size - rank])
    counted = _count_shares(raw, shares, last, order)
    larger, ties = counted.T
    if not larger.sum() < k <= (larger + ties).sum():
        last = _kth_by_histogram(raw, shares, k, bits, order)
        larger, ties = _count_shares(raw, shares, last, order).T
    pieces = [piece for share in shares for piece in share]
    quota = np.clip(k - larger.sum() - (np.cumsum(ties) - ties), 0, ties)  # earlier pieces first
    ends = np.cumsum(larger + quota)
    positions = np.empty(k, np.int64)
    jobs = iter(zip(pieces, quota.tolist(), (ends - larger - quota).tolist(), ends.tolist(), strict=True))
    _pool.run([partial(_write_share, raw, [next(jobs) for _ in share], last, order, positions) for share in shares])
    per_array = np.zeros(len(raw) + 1, np.int64)
    np.add.at(per_array, [p.array + 1 for p in pieces], larger + quota)
    return Found(positions, np.cumsum(per_array))


def _kth_by_histogram(raw: Sequence[Array], shares: list[list[Piece]], k: int, bits: int, order: Order) -> np.uint64:
    """The k-th largest magnitude, 16 bits a pass."""
    prefix = 0
    for shift in range(max(0, bits - _DIGIT), -1, -_DIGIT):
        histograms = _pool.run([partial(_count_digits, raw, share, shift, prefix, order) for share in shares])
        digit, k = digit_of(k, histograms)  # among the magnitudes that begin with prefix
        prefix = prefix << _DIGIT | digit
    return np.uint64(prefix)


def _count_digits(raw: Sequence[Array], share: list[Piece], shift: int, prefix: int, order: Order) -> Index:
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


def _count_shares(raw: Sequence[Array], shares: list[list[Piece]], last: np.uint64, order: Order) -> Index:
    """(larger than last, equal to it) of each piece."""
    counted = _pool.run([partial(_count_pieces, raw, share, last, order) for share in shares])
    return np.array([pair for share in counted for pair in share], np.int64)


def _count_pieces(raw: Sequence[Array], share: list[Piece], last: np.uint64, order: Order) -> list[tuple[int, int]]:
    return [count(raw[array], lo, hi, last, *order) for array, lo, hi in share]


@kernel
def count(a: Any, lo: Any, hi: Any, last: Any, sort: Any, all_but_sign: Any, infinity: Any) -> Any:
    larger, ties = 0, 0
    for i in range(np.uint64(lo), np.uint64(hi)):
        m = magnitude(a[i], sort, all_but_sign, infinity)
        larger += m > last
        ties += m == last
    return larger, ties


def _write_share(
    raw: Sequence[Array], jobs: list[tuple[Piece, int, int, int]], last: np.uint64, order: Order, positions: Index
) -> None:
    for (array, lo, hi), quota, begin, end in jobs:
        if end > begin:
            write(raw[array], lo, hi, last, quota, *order, positions[begin:end])


@kernel
def write(a: Any, lo: Any, hi: Any, last: Any, quota: Any, sort: Any, all_but_sign: Any, infinity: Any, out: Any) -> None:
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


def digit_of(k: int, histograms: list[Index]) -> tuple[int, int]:
    """Where in histograms of threads the k-th largest lies, and the how-manieth it is there."""
    from_top = np.cumsum(np.sum(histograms, axis=0)[::-1])
    rank = int(np.searchsorted(from_top, k))
    return from_top.size - 1 - rank, k - int(from_top[rank - 1]) if rank else k
