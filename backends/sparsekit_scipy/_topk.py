"""topk: a stable sort by magnitude."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_scipy import _bfloat16

Array = NDArray[Any]
Index = NDArray[np.int64]


def topk(arrays: Sequence[Array], k: int, *, dtype: str) -> list[Index]:
    # No more than k can come from one array, so each sends its own best, in order of position.
    candidates = [np.sort(_largest_first(a, dtype)[:k]) for a in arrays]
    order = _largest_first(np.concatenate([a[c] for a, c in zip(arrays, candidates, strict=True)]), dtype)
    chosen = np.sort(order[:k])
    ends = np.cumsum([c.size for c in candidates])
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    return [c[part - start] for c, part, start in zip(candidates, parts, [0, *ends[:-1]], strict=True)]


def _largest_first(x: Array, dtype: str) -> Index:
    """A stable order: of equal magnitudes, the lowest position comes first."""
    if dtype == "bfloat16":
        x = _bfloat16.to_float32(x)
    if x.dtype.kind == "f":
        is_nan = np.isnan(x)
        return np.lexsort((-np.where(is_nan, 0, np.abs(x)), ~is_nan))
    if x.dtype.kind == "i":
        x = np.abs(x).view(f"u{x.itemsize}")  # abs wraps the most negative value to itself: the right bits, read unsigned
    return np.argsort(~x, kind="stable")
