"""SGD: group the gradient's rows, then one pass that sums duplicates and updates each touched row."""

from typing import Any, NamedTuple

import numpy as np

from sparsekit_numba import _optim
from sparsekit_numba._jit import inlined, kernel
from sparsekit_numba._optim import EXACT, MASKED, Array, Index
from sparsekit_numba._scalars import prefetch_row


class Tables(NamedTuple):
    param: Any
    momentum_buffer: Any  # empty without momentum


class Rates(NamedTuple):
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    buffered: bool


def sparse_sgd_step(
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
    check: bool,  # always made: it costs nothing here
    modes: Any,
) -> bool:
    real = _optim.arithmetic_type(dtype, modes)
    tables, flags, lazy = _arguments(param, momentum_buffer, dtype, modes, False)
    rates = Rates(momentum, dampening, weight_decay, nesterov, momentum_buffer is not None)
    return _optim.run_step(_sgd_rows, tables, rows, values, dtype, real, maximize, flags, lazy, rates)


def sparse_sgd_flush(
    param: Array, momentum_buffer: Array | None, *, dtype: str, momentum: float, nesterov: bool, modes: Any
) -> None:
    tables, flags, lazy = _arguments(param, momentum_buffer, dtype, modes, True)
    rates = Rates(momentum, 0.0, 0.0, nesterov, momentum_buffer is not None)
    _optim.run_flush(_sgd_rows, tables, _optim.arithmetic_type(dtype, modes), flags, lazy, rates)


def _arguments(param: Array, momentum_buffer: Array | None, dtype: str, modes: Any, flush: bool) -> tuple[Any, ...]:
    if momentum_buffer is None:
        momentum_buffer = np.empty((0, 0), _optim.arithmetic_type(dtype, modes))
    tables = Tables(_optim.bits(param, dtype), _optim.bits(momentum_buffer, modes.state_dtype))
    return tables, _optim.flags(dtype, modes, flush), _optim.lazy_arrays(modes)


@inlined
def _catch_up(p: Any, b: Any, row: Any, end: Any, flags: Any, lazy: Any, rates: Any) -> None:
    """The steps up to ``end`` that the row sat out."""
    since = _optim.clamped_last(lazy.last_step, row, end)
    if since == end:
        return
    if flags.lazy:
        _optim.multiply(p, _optim.decay_between(lazy.history, since, end))
    if not rates.buffered or flags.moments == MASKED:
        return
    if flags.moments == EXACT:
        moving = False
        for j in range(b.size):
            moving |= b[j] != 0
        if moving:
            size = p.dtype.type(_sum_of_sizes(since, end, flags, lazy.history, rates))
            for j in range(b.size):
                p[j] -= size * b[j]
    _optim.multiply(b, _optim.power(rates.momentum, end - since))


@inlined
def _sum_of_sizes(since: Any, end: Any, flags: Any, history: Any, rates: Any) -> Any:
    """By how much of its buffer the row moves in the steps it sat out, until what is left does not show in the sum."""
    total, weight = 0.0, 1.0
    for s in range(since + 1, end + 1):
        weight *= rates.momentum
        size = history[s - 1, 0] * weight
        if flags.lazy:
            size *= _optim.decay_between(history, s, end)
        total += size
        if (history[end - 1, 2] * weight) * (rates.momentum / (1 - rates.momentum)) <= flags.unit * total:
            break
    return total * rates.momentum if rates.nesterov else total


@kernel
def _sgd_rows(
    tables: Any,
    gradient: Any,
    first: Any,
    last: Any,
    flags: Any,
    lazy: Any,
    rates: Any,
    tree: Any,
    rounded: Any,
    work: Any,
) -> None:
    """Groups (in a flush: rows) first <= s < last: the steps that the row sat out; then, but for a flush,

    b = momentum * b + (1 - dampening) * g;  p -= lr * b, or, by Nesterov, lr * (g + momentum * b)   (as torch.optim.SGD).
    """
    p, g, b = work[0], work[1], work[2]
    real, width = p.dtype.type, p.size
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
                prefetch_row(tables.momentum_buffer, gradient.rows[s + _optim.AHEAD])
        _optim.load_row(tables.param, row, flags.form, p)
        if rates.buffered:
            _optim.load_row(tables.momentum_buffer, row, flags.state_form, b)
        if flags.tracked:
            _catch_up(p, b, row, flags.step if flags.flush else flags.step - 1, flags, lazy, rates)
            lazy.last_step[row] = flags.step
        if not flags.flush:
            known = _optim.load_gradient(gradient, s, known, tree, rounded, g)
            if rates.weight_decay != 0:
                for j in range(width):
                    g[j] += real(rates.weight_decay) * p[j]
            if flags.decay != 1:
                _optim.multiply(p, flags.decay)
            if rates.buffered:
                _into_buffer(g, b, flags.step == 1, rates)
            for j in range(width):
                p[j] -= real(flags.lr) * g[j]
        _optim.store_row(tables.param, row, flags.form, p, flags, lazy, lazy.keys[0])
        if rates.buffered:
            _optim.store_row(tables.momentum_buffer, row, flags.state_form, b, flags, lazy, lazy.keys[1])


@inlined
def _into_buffer(g: Any, b: Any, is_first_step: Any, rates: Any) -> None:
    """g into the buffer; the direction to go into g."""
    momentum, rate = g.dtype.type(rates.momentum), g.dtype.type(1 - rates.dampening)
    for j in range(g.size):
        b[j] = g[j] if is_first_step else b[j] * momentum + g[j] * rate
    if rates.nesterov:
        for j in range(g.size):
            g[j] += b[j] * momentum
    else:
        for j in range(g.size):
            g[j] = b[j]
