"""Adagrad: group the gradient's rows, then one pass that sums duplicates and updates each touched row."""

from typing import Any, NamedTuple

import numpy as np

from sparsekit_numba import _optim
from sparsekit_numba._jit import kernel
from sparsekit_numba._optim import Array, Index
from sparsekit_numba._scalars import prefetch_row


class Tables(NamedTuple):
    param: Any
    state_sum: Any


def sparse_adagrad_step(
    param: Array,
    state_sum: Array,
    rows: Index,
    values: Array,
    *,
    dtype: str,
    eps: float,
    weight_decay: float,
    maximize: bool,
    check: bool,  # always made: it costs nothing here
    modes: Any,
) -> bool:
    real = _optim.arithmetic_type(dtype, modes)
    tables = Tables(_optim.bits(param, dtype), _optim.bits(state_sum, modes.state_dtype))
    flags, lazy = _optim.flags(dtype, modes, False), _optim.lazy_arrays(modes)
    return _optim.run_step(_adagrad_rows, tables, rows, values, dtype, real, maximize, flags, lazy, eps, weight_decay)


def sparse_adagrad_flush(param: Array, *, dtype: str, modes: Any) -> None:
    real = _optim.arithmetic_type(dtype, modes)
    tables = Tables(_optim.bits(param, dtype), np.empty((0, 0), real))
    flags, lazy = _optim.flags(dtype, modes, True), _optim.lazy_arrays(modes)
    _optim.run_flush(_adagrad_rows, tables, real, flags, lazy, 0.0, 0.0)


@kernel
def _adagrad_rows(
    tables: Any,
    gradient: Any,
    first: Any,
    last: Any,
    flags: Any,
    lazy: Any,
    eps: Any,
    weight_decay: Any,
    tree: Any,
    rounded: Any,
    work: Any,
) -> None:
    """Groups (in a flush: rows) first <= s < last: param *= the decay of the steps that the row sat out; then, but for a flush,

    sum += g**2;  p -= lr * g / (sqrt(sum) + eps)   (Duchi et al. 2011).
    """
    p, g, total = work[0], work[1], work[2]
    real, width = p.dtype.type, p.size
    squares = np.empty(width)
    known = np.searchsorted(gradient.long, first)
    for s in range(first, last):
        row = s
        if flags.flush:
            if lazy.last_step[row] >= flags.step:
                continue
        else:
            row = gradient.rows[s]
            if s + _optim.AHEAD < last:
                prefetch_row(tables.param, gradient.rows[s + _optim.AHEAD])
                prefetch_row(tables.state_sum, gradient.rows[s + _optim.AHEAD])
        _optim.load_row(tables.param, row, flags.form, p)
        if flags.lazy:
            end = flags.step if flags.flush else flags.step - 1
            since = _optim.clamped_last(lazy.last_step, row, end)
            _optim.multiply(p, _optim.decay_between(lazy.history, since, end))
        if not flags.flush:
            known = _optim.load_gradient(gradient, s, known, tree, rounded, g)
            _optim.load_row(tables.state_sum, row, flags.state_form, total)
            if weight_decay != 0:
                for j in range(width):
                    g[j] += real(weight_decay) * p[j]
            if flags.decay != 1:
                _optim.multiply(p, flags.decay)
            if flags.rowwise:
                mean = real(_optim.mean_of_squares(g, squares))
                for j in range(width):
                    total[j] += mean
            else:
                for j in range(width):
                    total[j] += g[j] * g[j]
            for j in range(width):
                p[j] -= real(flags.lr) * (g[j] / (np.sqrt(total[j]) + real(eps)))
            _optim.store_row(tables.state_sum, row, flags.state_form, total, flags, lazy, lazy.keys[1])
        _optim.store_row(tables.param, row, flags.form, p, flags, lazy, lazy.keys[0])
        if flags.tracked:
            lazy.last_step[row] = flags.step
