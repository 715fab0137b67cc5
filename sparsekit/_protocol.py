"""The contract between the core and a backend: a module that offers these functions is a backend.

The core checks every argument once (all but the range of the indices, see ``check``), so a backend gets clean input: native
byte order, C-contiguous, aligned, of a dtype from the table below. It never writes to an input that is not named an output.

Array conventions
    indices   int64, ``(sparse_ndim, nnz)``; sparse_ndim >= 0
    values    ``(nnz, width)``: the dense dimensions flattened; width >= 0
    dtype     the name of the values' logical dtype: bool, int8 ... int64, uint8 ... uint64, float16, bfloat16, float32,
              float64, complex64, complex128. NumPy has no bfloat16: such arrays come and go as uint16 bit patterns.

The order of a sum
    The entries of one coordinate, in input order, x0 ... x(n-1), in the wide type of the table. n <= 32: left to right, starting
    from x0 (so that -0.0 + -0.0 stays -0.0). n > 32: cut into consecutive blocks of 32, each summed left to right, then the
    same rule on the block sums. Rounded once, at the end. prod follows the same tree; mean is the sum divided by the count in
    the wide type, then rounded. Long runs so split at multiples of 32**level without changing a bit.

    ================  ==================
    values            wide type
    ================  ==================
    float16/bfloat16  float32
    float32           float64
    float64           float64
    complex64         complex128
    complex128        complex128
    integers          their own, wrapping
    bool              logical or / and
    ================  ==================
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Index = NDArray[np.int64]

BLOCK = 32
REDUCTIONS = ("sum", "mean", "min", "max", "prod")


class Backend(Protocol):
    """What a backend module offers. Results hold the same bits for any number of threads, and for sums on every backend."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices whose arrays it takes: "cpu", "cuda"."""

    def coalesce(
        self,
        indices: Index,
        values: Array,
        dims: tuple[int, ...],
        *,
        dtype: str,
        reduce: str,
        return_inverse: bool,
        return_counts: bool,
        check: bool,
    ) -> tuple[Index, Array, Index | None, Index | None] | None:
        """Reduce the entries of equal coordinates; coordinates in row-major order.

        Returns ``(indices (sparse_ndim, nnz_out), values (nnz_out, width), inverse (nnz,), counts (nnz_out,))``, all fresh, the
        last two None unless asked for. Returns None, having done nothing, where ``check`` is true and an index lies outside
        its dimension; with ``check`` false such indices give an undefined result, but never touch foreign memory.
        ``mean`` does not come with integers or bool, ``min`` and ``max`` not with complex. They propagate NaN.
        Cost: O(nnz log nnz) or better, O(nnz * width) memory.
        """

    def is_coalesced(self, indices: Index) -> bool:
        """Whether the coordinates strictly increase in row-major order. Cost: O(nnz * sparse_ndim), one pass."""

    def topk(self, arrays: Sequence[Array], k: int, *, dtype: str) -> list[Index]:
        """Positions of the k largest magnitudes over several 1-D arrays of one real dtype, as if concatenated.

        0 < k <= total size. Returns one ascending array of positions for each input array. Ties go to the lowest position,
        earlier arrays first; NaN ranks above infinity whatever its sign, and all NaN tie; -0.0 ties with 0.0; the magnitude
        of the most negative integer is exact. Cost: O(n) reads, O(k) memory.
        """

    def sparse_adam_step(
        self,
        param: Array,
        exp_avg: Array,
        exp_avg_sq: Array,
        rows: Index,
        values: Array,
        *,
        dtype: str,
        step_size: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        maximize: bool,
    ) -> bool:
        """Adam on the named rows of ``param`` and its states ``(n, width)``, in place; ``rows`` may repeat.

        Returns False, having written nothing, where a row lies outside ``param``; else True.

        ``values (nnz, width)`` has param's dtype, the states the dtype T: float64 for float64, else float32. With every
        scalar rounded to T first, and in this order of operations, so that backends agree to the bit::

            g = values summed over equal rows (the tree above, rounded once to param's dtype), widened to T
            g = -g                              if maximize
            g = g + weight_decay * p            if weight_decay
            m = m + (g - m) * (1 - beta1)
            v = v + (g * g - v) * (1 - beta2)
            p = p - step_size * (m / (sqrt(v) + eps))

        with 16-bit p rounded to nearest even. Cost: O(nnz log nnz + nnz * width), extra memory O(nnz + width).
        """

    def set_num_threads(self, n: int) -> None:
        """Use at most n >= 1 threads from now on."""

    def warmup(self) -> None:
        """Compile what is compiled on first use, where there is such a thing."""
