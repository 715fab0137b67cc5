"""What the optimizer steps share: the summed gradient, rows in the arithmetic type and back, functions of float64."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_scipy import _bfloat16
from sparsekit_scipy._coalesce import coalesce, reduce_groups

Array = NDArray[Any]
Index = NDArray[np.int64]
Float64 = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
REST_EVERY = 16  # steps of a replay between looks at whether the rest is too small to matter


def arithmetic_type(dtype: str, state_dtype: str) -> type:
    return np.float64 if "float64" in (dtype, state_dtype) else np.float32


def unit(real: type) -> float:
    """Half a unit in the last place of 1."""
    return 2.0**-24 if real is np.float32 else 2.0**-53


def gradient(rows: Index, values: Array, n: int, dtype: str, real: type, maximize: bool) -> tuple[Index, Array] | None:
    """(touched rows, their summed gradient in the arithmetic type); None where a row is out of range."""
    summed = coalesce(rows[None], values, (n,), dtype=dtype, reduce="sum", return_inverse=False, return_counts=False, check=True)
    if summed is None:
        return None
    g = widen(summed[1], dtype, real)
    return summed[0][0], -g if maximize else g


def widen(x: Array, dtype: str, real: type) -> Array:
    return (_bfloat16.to_float32(x) if dtype == "bfloat16" else x).astype(real)


def store(table: Array, rows: Index, x: Array, dtype: str, key: int | None, row_numbers: Index | None) -> None:
    """Rows of a table from the arithmetic type: rounded to nearest even, or, with a key, at random to 16 bits."""
    if dtype not in ("float16", "bfloat16"):
        table[rows] = x
        return
    x = x.astype(np.float32)
    if key is None:
        table[rows] = _bfloat16.from_float32(x) if dtype == "bfloat16" else x.astype(np.float16)
        return
    numbers = rows if row_numbers is None else row_numbers[rows]
    position = numbers[:, None] * x.shape[1] + np.arange(x.shape[1])
    bits = _mix(np.uint64(key) + (position + 1).astype(np.uint64) * _GOLDEN)
    round_up = _bfloat16_at_random if dtype == "bfloat16" else _half_at_random
    table[rows] = round_up(x, bits).view(table.dtype)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _bfloat16_at_random(x: NDArray[np.float32], bits: NDArray[np.uint64]) -> NDArray[np.uint16]:
    raised = (x.view(np.uint32) + (bits >> np.uint64(48)).astype(np.uint32)) >> np.uint32(16)
    return np.where(np.isnan(x), _bfloat16.from_float32(x), raised).astype(np.uint16)


def _half_at_random(x: NDArray[np.float32], bits: NDArray[np.uint64]) -> NDArray[np.uint16]:
    pattern = x.view(np.uint32)
    magnitude = pattern & np.uint32(0x7FFFFFFF)
    units = np.minimum(np.abs(x), np.float32(1.0)) * np.float32(2.0**24)  # of the subnormals
    whole = np.floor(units)
    chance = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    small = whole.astype(np.uint32) + (chance < units - whole)
    normal = (magnitude - np.uint32(0x38000000) + (bits >> np.uint64(51)).astype(np.uint32)) >> np.uint32(13)
    half = np.where(magnitude < np.uint32(0x38800000), small, normal)
    half = np.where(magnitude >= np.uint32(0x47800000), np.uint32(0x7C00), half)
    half = np.where(np.isnan(x), np.uint32(0x7E00), half)
    sign = (pattern >> np.uint32(16)) & np.uint32(0x8000)
    out: NDArray[np.uint16] = (half | sign).astype(np.uint16)
    return out


def mean_of_squares(g: Array) -> Float64:
    """``(rows, 1)``: of each row, summed in float64 by the contract's tree."""
    rows, width = g.shape
    squares = np.square(g.astype(np.float64)).reshape(-1, 1)
    mean: Float64 = reduce_groups(squares, np.full(rows, width), "float64", "sum") / width
    return mean


def power(x: float, n: Index) -> Float64:
    """x**n by squaring."""
    result, square, left = np.ones(n.shape), x, n
    while left.any():
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left // 2
    return result


def exponential(x: Float64) -> Float64:
    """exp(x) for x <= 0: 2**n * exp(y), the latter by its series."""
    x = np.maximum(x, -800.0)
    n = np.floor(x * 1.4426950408889634 + 0.5)
    y = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
    series = np.ones_like(x)
    for i in range(13, 0, -1):
        series = 1 + series * y / i
    return np.where(n > 0, 2 * series, series * power(0.5, np.maximum(-n, 0).astype(np.int64)))


def decay_before(history: Array, step: Index) -> Float64:
    """L: the logarithm of all decay up to and including a step."""
    return np.where(step > 0, history[np.maximum(step, 1) - 1, 1], 0.0)


def clamped_last(last_step: Index, rows: Index, end: int) -> Index:
    return np.clip(last_step[rows], 0, end)


def decay_between(history: Array, first: Index, last: Index) -> Float64:
    """The factor of the steps first + 1 ... last together."""
    return exponential(decay_before(history, last) - decay_before(history, first))


def decayed(p: Array, rows: Index, end: int, real: type, modes: Any) -> Array:
    """Rows of param after the decay of the steps up to ``end`` that they sat out."""
    last = clamped_last(modes.last_step, rows, end)
    return p * decay_between(modes.history, last, np.full_like(last, end)).astype(real)[:, None]
