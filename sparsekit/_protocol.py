"""The contract between the core and a backend: a module that offers these functions is a backend.

The core checks every argument once (all but the range of the indices, see ``check``), so a backend gets clean input: native
byte order, C-contiguous, aligned, of a dtype from the table below. It never writes to an input that is not named an output.
Arrays are NumPy's on the CPU, CuPy's on a CUDA device, which is then the current one, and the stream too; results likewise.
A backend of device arrays says where it waits for the device; it does so only for what the host must know.

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

The optimizers' arithmetic
    Each function names its order of operations, so that backends agree to the bit. A row is loaded into the arithmetic type T
    (float64 if the parameter or its states are float64, else float32), updated there, and stored once; scalars are computed in
    float64, in the order written, and rounded to T where they meet T. No operation is contracted with another. Formulas use
    only + - * / sqrt, and these two functions of float64, so that no library's own rounding comes in::

        power(x, n):  r = 1; while n: { if n is odd: r = r * x;  x = x * x;  n = n // 2 };  r
        exponential(x), x <= 0:
            x = max(x, -800);  n = floor(x * 1.4426950408889634 + 0.5)
            y = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
            s = 1; for i = 13, 12 ... 1: s = 1 + s * y / i
            s * power(0.5, -n), or 2 * s if n is 1

    16-bit arrays are stored from float32 (T float64 is rounded to float32 first): to nearest even, or, with ``Modes.keys``, at
    random. Element ``position`` (row * width + column, of the whole table) of array number a draws 64 bits::

        mix(z):  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^ (z >> 31)      (splitmix64)
        bits = mix(keys[a] + (position + 1) * 0x9E3779B97F4A7C15)                                     (uint64, wrapping)

    bfloat16: the float32's pattern, plus the top 16 of these bits, cut to its upper half. float16 of magnitude below 2**-14:
    floor(abs(x) * 2**24), one more if the top 24 bits * 2**-24 are below what floor cut off, is the pattern; else the exponent is
    rebiased, the top 13 bits added and 13 cut off; 65536 and more is infinity. NaN as to nearest.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # or CuPy's arrays, which have no static type of their own
Index = NDArray[np.int64]

BLOCK = 32
REDUCTIONS = ("sum", "mean", "min", "max", "prod")


class Modes(NamedTuple):
    """How an optimizer step departs from the plain one, and the arrays for that; row arrays are ``(n,)``, updated in place."""

    step: int
    lr: float  # of this step; after Adagrad's decay of it
    decay: float  # param is multiplied by this before the update; 1 - lr * weight_decay in the decoupled modes, else 1
    lazy: bool  # the decay reaches all rows: steps that a row sat out are caught up
    moments: str  # "masked", "decayed", "exact"
    state_dtype: str  # as ``dtype``, of the states
    rowwise: bool = False  # the second moment is (n, 1)
    keys: tuple[int, ...] | None = None  # for stochastic rounding: one for param and each state, in the order of the arguments
    max_exp_avg_sq: Array | None = None  # like exp_avg_sq; the last of the keys is its
    row_step: Index | None = None  # updates that a row's moments went through, for its own bias correction
    last_step: Index | None = None  # step as of which a row is up to date
    history: Array | None = None  # (capacity, 3) float64, read only: of step s in row s - 1 (lr, L, largest lr so far)
    row_numbers: Index | None = None  # where the tables hold some rows of a larger one: their numbers in it, for ``position``


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
        check: bool,
        modes: Modes | None,
    ) -> bool:
        """Adam on the named rows of ``param`` and its states ``(n, width)``, in place; ``rows`` may repeat.

        Returns False, having written nothing, where ``check`` is true and a row lies outside ``param``; else True. With
        ``check`` false the effect of such rows is undefined, but foreign memory is never touched, and on a device nothing waits
        for the answer. (On the CPU a look at the rows costs nothing: a backend may go on returning False.)

        ``values (nnz, width)`` has param's dtype. Without modes the states have the dtype T: float64 for float64, else float32.
        In this order of operations::

            g = values summed over equal rows (the tree above, rounded once to param's dtype), widened to T
            g = -g                              if maximize
            g = g + weight_decay * p            if weight_decay
            m = m + (g - m) * (1 - beta1)
            v = v + (g * g - v) * (1 - beta2)
            p = p - step_size * (m / (sqrt(v) + eps))

        With modes, for each row::

            catch up to step - 1 (below)
            g as above
            p = p * decay
            m as above;  v = v + (q - v) * (1 - beta2), where q = g * g, or, if rowwise, the sum over the row of g * g, in float64
                and by the tree, divided by width (in float64)
            w = v, or max_exp_avg_sq = w = the larger of it and v (NaN wins)
            p = p - size * (m / (sqrt(w) + e))
            last_step = step; row_step = k

        where k = row_step + 1, with row_step: size = lr * sqrt(1 - b2) / (1 - b1), b1 = power(beta1, k), b2 = power(beta2, k);
        without: size = step_size, b2 = power(beta2, step). e = eps * sqrt(1 - b2) if moments is "exact", else eps.

        To catch up to ``end``, from last = last_step clamped to [0, end], with n = end - last > 0, L(s) = history[s - 1, 1],
        L(0) = 0::

            "masked":   p = p * exponential(L(end) - L(last))         if lazy, here and below
            "decayed":  m = m * power(beta1, n);  v = v * power(beta2, n);  p as above
            "exact":    c = row_step, or last; not at all if row_step is 0;  b1 = power(beta1, c);  b2 = power(beta2, c)
                for s = last + 1 ... end: { stop here if (s - last - 1) % 16 == 0 and the row is at rest
                    b1 = b1 * beta1;  b2 = b2 * beta2;  p = p * exponential(L(s) - L(s - 1))
                    m = m * beta1;  v = v * beta2
                    p = p - size * (m / (sqrt(w) + e)),  size = history[s - 1, 0] * sqrt(1 - b2) / (1 - b1),  e as above }
                the steps s ... end that are left: as "decayed", from s - 1
            row_step = row_step + n                 if it is not 0, and moments is not "masked"

        A row is at rest if every element is not finite in p, or 0 in m, or has, in float64, with ratio = beta1 / sqrt(beta2) < 1
        (ratio = beta1 with max_exp_avg_sq, which does not decay)::

            abs(m) * (history[end - 1, 2] * (ratio / ((1 - ratio) * (1 - beta1)))) <= (unit * D * abs(p)) * sqrt(w)

        with D = exponential(L(end) - L(s - 1)) if lazy, else 1, and unit 2**-24 where T is float32, else 2**-53: a geometric
        series bounds what the updates left can add. Cost: O(nnz log nnz + nnz * width), extra memory O(nnz + width); in "exact"
        also the steps caught up.
        """

    def sparse_adam_flush(
        self, param: Array, exp_avg: Array, exp_avg_sq: Array, *, dtype: str, beta1: float, beta2: float, eps: float, modes: Modes
    ) -> None:
        """Catch all rows up to the end of ``modes.step``, as above; last_step = step. Rows that are there are not written."""

    def sparse_adagrad_step(
        self,
        param: Array,
        state_sum: Array,
        rows: Index,
        values: Array,
        *,
        dtype: str,
        eps: float,
        weight_decay: float,
        maximize: bool,
        check: bool,
        modes: Modes,
    ) -> bool:
        """Adagrad; arguments, result and order of operations as sparse_adam_step with modes, but for the update::

            state_sum = state_sum + q
            p = p - lr * (g / (sqrt(state_sum) + eps))

        Only p is caught up, and only if lazy ("masked"). Cost: as sparse_adam_step.
        """

    def sparse_adagrad_flush(self, param: Array, *, dtype: str, modes: Modes) -> None:
        """As sparse_adam_flush."""

    def sparse_sgd_step(
        self,
        param: Array,
        momentum_buffer: Array | None,
        rows: Index,
        values: Array,
        *,
        dtype: str,
        momentum: float,
        dampening: float,
        nesterov: bool,
        weight_decay: float,
        maximize: bool,
        check: bool,
        modes: Modes,
    ) -> bool:
        """SGD; arguments, result and order of operations as sparse_adam_step with modes, but for the update::

            b = g if step is 1, else b * momentum + g * (1 - dampening)
            d = g + b * momentum if nesterov, else b                     (d = g without a momentum_buffer)
            p = p - lr * d

        and for catching up, with u = power(momentum, n)::

            "masked":   p = p * exponential(L(end) - L(last))         if lazy, here and below
            "decayed":  b = b * u;  p as above
            "exact":    p as above;  p = p - c * b;  b = b * u        not c, if all of b's row is 0

        where c is summed in float64: c = 0; z = 1; for s = last + 1 ... end::

            z = z * momentum;  c = c + (history[s - 1, 0] * z) * exponential(L(end) - L(s))     (no exponential unless lazy)
            stop if (history[end - 1, 2] * z) * (momentum / (1 - momentum)) <= unit * c

        and c = c * momentum at the end if nesterov. Cost: as sparse_adam_step.
        """

    def sparse_sgd_flush(
        self, param: Array, momentum_buffer: Array | None, *, dtype: str, momentum: float, nesterov: bool, modes: Modes
    ) -> None:
        """As sparse_adam_flush."""

    def set_num_threads(self, n: int) -> None:
        """Use at most n >= 1 threads from now on."""

    def warmup(self) -> None:
        """Compile what is compiled on first use, where there is such a thing."""
