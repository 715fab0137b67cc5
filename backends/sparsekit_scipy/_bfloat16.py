"""bfloat16 as the upper half of a float32 (NumPy has no such dtype)."""

import numpy as np
from numpy.typing import NDArray


def to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_float32(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; NaN stays NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40  # rounding could carry a NaN's payload into infinity
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)
