"""The oracle of coalesce, in float64 NumPy, which the optimizer's oracle needs too."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._case import Arrays, WrongResultError
from bench._data import EPSILON, widen

Array = NDArray[Any]


def keys(inputs: Arrays) -> Array:
    """Row-major numbers of the coordinates."""
    indices = inputs["indices"]
    return np.asarray(np.ravel_multi_index(tuple(indices), tuple(inputs["shape"][: len(indices)])))


def sums(inputs: Arrays, dtype: str) -> tuple[Array, Array, Array, Array]:
    """Unique keys (u,), their sums (u, *dense), the sums of their magnitudes, their counts (u,)."""
    flat = keys(inputs)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    heads = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    entries = widen(inputs["values"], dtype)[order]
    counts = np.diff(np.append(heads, len(flat)))
    total = np.add.reduceat(entries, heads, axis=0)
    np.abs(entries, out=entries)
    return ordered[heads], total, np.add.reduceat(entries, heads, axis=0), counts


def rounding(magnitudes: Array, counts: Array, dtype: str) -> Array:
    """How far a sum may lie from the exact one: rounding errors that add up as a random walk, and room for 4 more.

    A sum that stagnates, because its accumulator is too narrow for its length, lies far outside.
    """
    if dtype not in EPSILON:
        return np.zeros(magnitudes.shape)
    steps = 4 + np.sqrt(counts)
    return np.asarray(EPSILON[dtype] * steps.reshape(-1, *[1] * (magnitudes.ndim - 1)) * magnitudes)


def compare(name: str, found: Array, expected: Array, allowed: Array) -> None:
    """Raises WrongResultError unless shapes agree and every value lies within ``allowed`` of the expected one.

    ``allowed`` may be an array that broadcasts.
    """
    if found.shape != expected.shape:
        raise WrongResultError(f"{name}: expected shape {expected.shape}, got {found.shape}")
    difference = np.abs(found - expected)
    allowed = np.broadcast_to(allowed, difference.shape)
    wrong = ~(difference <= allowed)  # NaN too
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(wrong, difference - allowed, -np.inf)), wrong.shape)
        place = ", ".join(str(i) for i in worst)
        raise WrongResultError(
            f"{name}: {wrong.sum():,} of {wrong.size:,} are wrong, the worst [{place}] = {found[worst]:.6g}, "
            f"expected {expected[worst]:.6g} within {allowed[worst]:.2g}"
        )
