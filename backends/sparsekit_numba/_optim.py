"""What the optimizer steps share: the gradient's rows, rows in the arithmetic type and back, functions of float64.

A step and its flush are one kernel, whose modes are looked at once a row: it is compiled once for each pair of dtypes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._group import group
from sparsekit_numba._jit import inlined
from sparsekit_numba._reduce import AT_LEAST, BLOCK, LEVELS, reduce_long_groups, reduce_rows, split, wide_dtype
from sparsekit_numba._scalars import FORMS, PLAIN, SUM, as_state, mix, store, store_at_random
from sparsekit_numba._scratch import Scratch

Array = NDArray[Any]
Index = NDArray[np.int64]

AHEAD = 4  # groups between the prefetch of a row and its update
MASKED, DECAYED, EXACT = 0, 1, 2
MOMENTS = {"masked": MASKED, "decayed": DECAYED, "exact": EXACT}
REST_EVERY = 16  # steps of a replay between looks at whether the rest is too small to matter
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NO_STEPS = np.empty(0, np.int64)
_NO_HISTORY = np.empty((0, 3))
_NO_KEYS = np.zeros(4, np.uint64)


class Gradient(NamedTuple):
    """The groups that a kernel sums, each for its row."""

    values: Any
    rows: Any
    order: Any
    starts: Any
    long: Any  # groups whose totals are known
    totals: Any
    maximize: bool
    form: int


class Lazy(NamedTuple):
    """The arrays of the modes; empty where not in use."""

    row_step: Any
    last_step: Any
    history: Any
    row_numbers: Any
    keys: Any


class Flags(NamedTuple):
    """The modes themselves, and this step's numbers; float64 where they are floats."""

    step: int
    flush: bool  # every row, without a gradient
    lr: float
    decay: float
    lazy: bool
    moments: int
    rowwise: bool
    by_row: bool  # bias correction
    tracked: bool  # there is a last_step
    at_random: bool  # rounding
    form: int
    state_form: int
    unit: float  # half a unit in the last place of 1


def arithmetic_type(dtype: str, modes: Any) -> type:
    return np.float64 if "float64" in (dtype, modes.state_dtype) else np.float32


def bits(table: Array, dtype: str) -> Array:
    """16-bit floats as kernels take them."""
    return table.view(np.uint16) if dtype in FORMS else table


def flags(dtype: str, modes: Any, flush: bool) -> Flags:
    return Flags(
        step=modes.step,
        flush=flush,
        lr=modes.lr,
        decay=modes.decay,
        lazy=modes.lazy,
        moments=MOMENTS[modes.moments],
        rowwise=modes.rowwise,
        by_row=modes.row_step is not None,
        tracked=modes.last_step is not None,
        at_random=modes.keys is not None,
        form=FORMS.get(dtype, PLAIN),
        state_form=FORMS.get(modes.state_dtype, PLAIN),
        unit=2.0**-53 if arithmetic_type(dtype, modes) is np.float64 else 2.0**-24,
    )


def lazy_arrays(modes: Any) -> Lazy:
    return Lazy(
        row_step=_NO_STEPS if modes.row_step is None else modes.row_step,
        last_step=_NO_STEPS if modes.last_step is None else modes.last_step,
        history=_NO_HISTORY if modes.history is None else modes.history,
        row_numbers=_NO_STEPS if modes.row_numbers is None else modes.row_numbers,
        keys=_NO_KEYS if modes.keys is None else np.array(modes.keys, np.uint64),
    )


def run_step(
    kernel: Callable[..., None], tables: Any, rows: Index, values: Array, dtype: str, real: type, maximize: bool, *rest: Any
) -> bool:
    """Let the kernel update the rows that a gradient names; False, with nothing done, where one is out of range."""
    form, width = FORMS.get(dtype, PLAIN), values.shape[1]
    values = bits(values, dtype)
    with Scratch() as scratch:
        groups = group(rows[None], (len(tables.param),), True, scratch)
        if groups is None:
            return False
        long, totals = reduce_long_groups(values, groups.order, groups.starts, SUM, form)
        order = groups.order
        if order is None:  # one more kernel is dearer than this array
            order = scratch.empty(rows.size, np.uint32 if rows.size < 2**32 else np.int64)
            order[:] = np.arange(rows.size)
        gradient = Gradient(values, groups.indices[0], order, groups.starts, long, totals, maximize, form)
        _pool.run(
            [
                partial(kernel, tables, gradient, first, last, *rest, *_buffers(tables.param, real))
                for first, last in split(groups.starts, width)
            ]
        )
    return True


def run_flush(kernel: Callable[..., None], tables: Any, real: type, *rest: Any) -> None:
    """Let the kernel bring all rows up to date."""
    n, width = tables.param.shape
    none = np.empty((0, width), wide_dtype(tables.param))
    nothing = np.empty(0, np.uint32)
    gradient = Gradient(tables.param[:0], _NO_STEPS, nothing, np.zeros(1, np.int64), np.empty(0, np.int64), none, False, PLAIN)
    _pool.run(
        [
            partial(kernel, tables, gradient, first, last, *rest, *_buffers(tables.param, real))
            for first, last in _pool.ranges(n, AT_LEAST // max(1, width))
        ]
    )


def _buffers(param: Array, real: type) -> tuple[Array, Array, Array]:
    """Of one thread: the tree of a sum, its rounded result, rows at work."""
    width = param.shape[1]
    return np.empty((LEVELS, width), wide_dtype(param)), np.empty((1, width), param.dtype), np.empty((5, width), real)


@inlined
def load_gradient(gradient: Any, s: Any, known: Any, tree: Any, rounded: Any, g: Any) -> Any:
    """The sum of group s into g; returns the number of the next long group."""
    width = g.size
    if known < gradient.long.size and gradient.long[known] == s:
        level = 0
        for j in range(width):
            tree[0, j] = gradient.totals[known, j]
        known += 1
    else:
        level = reduce_rows(gradient.values, gradient.order, gradient.starts[s], gradient.starts[s + 1], SUM, gradient.form, tree)
    for j in range(width):
        store(rounded, 0, j, tree[level, j], gradient.form)  # the gradient as coalesce would give it
    for j in range(width):
        g[j] = as_state(rounded[0, j], gradient.form)
    if gradient.maximize:
        for j in range(width):
            g[j] = -g[j]
    return known


@inlined
def load_row(table: Any, row: Any, form: Any, out: Any) -> None:
    """A row in the arithmetic type; where the table has one number a row, that one everywhere."""
    if table.shape[1] == 1:
        x = as_state(table[row, 0], form)
        for j in range(out.size):
            out[j] = x
    else:
        for j in range(out.size):
            out[j] = as_state(table[row, j], form)


@inlined
def store_row(table: Any, row: Any, form: Any, x: Any, flags: Any, lazy: Any, key: Any) -> None:
    """A row rounded to the table's dtype."""
    width = table.shape[1]
    if flags.at_random and form != PLAIN:
        at = np.uint64(lazy.row_numbers[row] if lazy.row_numbers.size else row) * np.uint64(width)
        for j in range(width):
            drawn = mix(key + (at + np.uint64(j) + np.uint64(1)) * _GOLDEN)
            store_at_random(table, row, j, x[j], form, drawn)
    else:
        for j in range(width):
            store(table, row, j, x[j], form)


@inlined
def mean_of_squares(g: Any, squares: Any) -> Any:
    """Summed in float64 by the contract's tree, each level over the one before."""
    for j in range(g.size):
        x = np.float64(g[j])
        squares[j] = x * x
    left = g.size
    while left > 1:
        blocks = (left + BLOCK - 1) // BLOCK
        for b in range(blocks):
            total = squares[b * BLOCK]
            for j in range(b * BLOCK + 1, min((b + 1) * BLOCK, left)):
                total += squares[j]
            squares[b] = total
        left = blocks
    return squares[0] / g.size


@inlined
def power(x: Any, n: Any) -> Any:
    """x**n by squaring."""
    result = 1.0
    while n > 0:
        if n & 1:
            result *= x
        x *= x
        n >>= 1
    return result


@inlined
def exponential(x: Any) -> Any:
    """exp(x) for x <= 0: 2**n * exp(y), the latter by its series."""
    x = max(x, -800.0)
    n = np.floor(x * 1.4426950408889634 + 0.5)
    y = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
    series = 1.0
    for i in range(13, 0, -1):
        series = 1 + series * y / i
    return 2 * series if n > 0 else series * power(0.5, np.int64(-n))


@inlined
def decay_between(history: Any, first: Any, last: Any) -> Any:
    """The factor of the steps first + 1 ... last together."""
    before = history[first - 1, 1] if first > 0 else 0.0
    upto = history[last - 1, 1] if last > 0 else 0.0
    return exponential(upto - before)


@inlined
def multiply(x: Any, factor: Any) -> None:
    """By a factor in float64, rounded to x's type first."""
    rounded = x.dtype.type(factor)
    for j in range(x.size):
        x[j] *= rounded


@inlined
def clamped_last(last_step: Any, row: Any, end: Any) -> Any:
    return min(max(last_step[row], 0), end)
