"""What every operation means, in plain loops. Imports nothing from sparsekit, so that it can contradict it.

Wherever the contract promises bits, the loops use NumPy scalars and rows of the wide type, rounding once an operation.
"""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np

BLOCK = 32
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
WIDE = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float64",
    "float64": "float64",
    "complex64": "complex128",
    "complex128": "complex128",
}


def wide(dtype):
    """The type that sums of this type are made in: integers and bool in their own."""
    return np.dtype(WIDE.get(dtype.name, dtype))


def bfloat16_bits(x):
    """Bit patterns (uint16) of float32 values rounded to the nearest bfloat16, ties to even, by integer arithmetic."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def narrow(x, dtype):
    """Wide values rounded once to dtype."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        return bfloat16_bits(x).view(BFLOAT16) if dtype == BFLOAT16 else x.astype(dtype)


def nearest(x, dtype):
    """A Fraction rounded to the nearest float of dtype, ties to even, by the definition: no float arithmetic at all."""
    info = ml_dtypes.finfo(dtype)
    if x == 0:
        return 0.0
    exponent = max(math.floor(math.log2(abs(x))), info.minexp)
    while abs(x) >= Fraction(2) ** (exponent + 1):  # log2 of a Fraction is itself rounded
        exponent += 1
    while exponent > info.minexp and abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - info.nmant)
    rounded = round(x / unit) * unit  # Python rounds a Fraction half to even
    return math.copysign(math.inf, x) if abs(rounded) > Fraction(float(info.max)) else float(rounded)


def fold(entries, op):
    total = entries[0]
    for entry in entries[1:]:
        total = op(total, entry)
    return total


def tree(entries, op):
    """Up to 32 entries left to right; more in blocks of 32, then the same on the blocks' results."""
    while len(entries) > BLOCK:
        entries = [fold(entries[i : i + BLOCK], op) for i in range(0, len(entries), BLOCK)]
    return fold(entries, op)


def exact_sum(entries):
    """The sum of real numbers, rounded once to float64 (fsum)."""
    return math.fsum(float(entry) for entry in entries)


def _reduced(rows, reduce):
    """One coordinate's rows, in the wide type, in input order."""
    if reduce in ("min", "max") or rows[0].dtype.kind == "b":
        either = np.logical_or if rows[0].dtype.kind == "b" else np.maximum  # maximum and minimum propagate NaN
        both = np.logical_and if rows[0].dtype.kind == "b" else np.minimum
        return fold(rows, either if reduce in ("sum", "max") else both)
    total = tree(rows, np.multiply if reduce == "prod" else np.add)
    if reduce != "mean":
        return total
    if total.dtype.kind == "c":  # by parts: NumPy's complex division is not rounded to nearest
        mean = np.empty_like(total)
        mean.real, mean.imag = np.real(total) / len(rows), np.imag(total) / len(rows)  # 1j * infinity has a NaN in it
        return mean
    return total / total.dtype.type(len(rows))


def coalesce(indices, values, reduce="sum"):
    """indices (sparse_ndim, nnz), values (nnz, *dense) -> (indices, values, inverse, counts)."""
    if indices.ndim == 1:
        indices = indices[None]
    if reduce == "mean" and values.dtype.kind in "iub":
        values = values.astype(np.float64)
    coordinates = list(zip(*indices.tolist(), strict=True)) if len(indices) else [()] * len(values)
    positions = {}
    for i, coordinate in enumerate(coordinates):
        positions.setdefault(coordinate, []).append(i)
    unique = sorted(positions)  # Python compares tuples of unbounded integers: row-major order
    number = {coordinate: i for i, coordinate in enumerate(unique)}
    inverse = np.array([number[c] for c in coordinates], np.int64)
    counts = np.array([len(positions[c]) for c in unique], np.int64)
    rows = list(values.astype(wide(values.dtype)))
    reduced = np.empty((len(unique), *values.shape[1:]), wide(values.dtype))
    with np.errstate(all="ignore"):
        for i, coordinate in enumerate(unique):
            reduced[i] = _reduced([rows[j] for j in positions[coordinate]], reduce)
    out_indices = np.array(unique, object).reshape(len(unique), len(indices)).T.astype(indices.dtype)
    return out_indices, narrow(reduced, values.dtype), inverse, counts


def is_coalesced(indices):
    indices = indices[None] if indices.ndim == 1 else indices
    coordinates = list(zip(*indices.tolist(), strict=True)) if len(indices) else [()] * indices.shape[1]
    return all(a < b for a, b in itertools.pairwise(coordinates))


def to_dense(indices, values, shape):
    unique, reduced, _, _ = coalesce(indices, values)
    dense = np.zeros(shape, values.dtype)
    for i in range(unique.shape[1]):
        dense[tuple(int(x) for x in unique[:, i])] = reduced[i]
    return dense


def topk(arrays, k):
    """Flat positions of the k largest magnitudes over the arrays, one list for each array, in order of magnitude."""
    ranked = []
    for number, array in enumerate(arrays):
        exact = array if array.dtype.kind in "iub" else np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
        for position, x in enumerate(exact.ravel().tolist()):  # Python's numbers: abs never wraps
            key = (0, 0) if math.isnan(x) else (1, -abs(x))
            ranked.append((key, number, position))
    ranked.sort()
    return [[position for _, number, position in ranked[:k] if number == i] for i in range(len(arrays))]


def adam(
    param,
    exp_avg,
    exp_avg_sq,
    indices,
    values,
    *,
    step,
    lr=1e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    maximize=False,
):
    """New (param, exp_avg, exp_avg_sq), row by row; every operation is rounded to the state's type."""
    real = np.float64 if param.dtype == np.float64 else np.float32
    param, exp_avg, exp_avg_sq = param.copy(), exp_avg.copy(), exp_avg_sq.copy()
    rows, sums, _, _ = coalesce(indices, values)
    size = real(lr * math.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step))
    rate1, rate2 = real(1 - betas[0]), real(1 - betas[1])
    with np.errstate(all="ignore"):
        for i in range(rows.shape[1]):
            row = tuple(int(x) for x in rows[:, i])
            g = sums[i].astype(real)
            p, m, v = param[row].astype(real), exp_avg[row], exp_avg_sq[row]
            if maximize:
                g = -g
            if weight_decay:
                g = g + real(weight_decay) * p
            m = m + (g - m) * rate1
            v = v + (g * g - v) * rate2
            p = p - size * (m / (np.sqrt(v) + real(eps)))
            param[row], exp_avg[row], exp_avg_sq[row] = narrow(p, param.dtype), m, v
    return param, exp_avg, exp_avg_sq
