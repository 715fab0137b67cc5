"""Adam: group the gradient's rows, then one pass that sums duplicates and updates each touched row."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparsekit_numba import _optim, _pool
from sparsekit_numba._group import group
from sparsekit_numba._jit import inlined, kernel
from sparsekit_numba._optim import AHEAD, EXACT, MASKED, REST_EVERY, Array, Index
from sparsekit_numba._reduce import LEVELS, reduce_long_groups, reduce_rows, split, wide_dtype
from sparsekit_numba._scalars import FORMS, PLAIN, SUM, as_state, prefetch_row, store
from sparsekit_numba._scratch import Scratch


def sparse_adam_step(
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
    check: bool,  # always made: it costs nothing here
    modes: Any,
) -> bool:
    if modes is not None:
        rates = Rates(step_size, beta1, beta2, eps, weight_decay, modes.max_exp_avg_sq is not None)
        real = _optim.arithmetic_type(dtype, modes)
        tables, flags, lazy = _arguments(param, exp_avg, exp_avg_sq, dtype, modes, False)
        return _optim.run_step(_adam_rows, tables, rows, values, dtype, real, maximize, flags, lazy, rates)
    form = FORMS.get(dtype, PLAIN)
    if form != PLAIN:
        param, values = param.view(np.uint16), values.view(np.uint16)
    state = exp_avg.dtype.type
    scalars = [state(x) for x in (step_size, 1 - beta1, 1 - beta2, eps, weight_decay)]
    width = values.shape[1]
    with Scratch() as scratch:
        groups = group(rows[None], (param.shape[0],), True, scratch)
        if groups is None:
            return False
        long, totals = reduce_long_groups(values, groups.order, groups.starts, SUM, form)
        _pool.run(
            [
                partial(
                    _adam_range,
                    param,
                    exp_avg,
                    exp_avg_sq,
                    values,
                    groups.indices[0],
                    groups.order,
                    groups.starts,
                    first,
                    last,
                    long,
                    totals,
                    form,
                    *scalars,
                    maximize,
                    np.empty((LEVELS, width), wide_dtype(values)),
                    np.empty((1, width), param.dtype),
                    np.empty(width, state),
                )
                for first, last in split(groups.starts, width)
            ]
        )
    return True


@kernel
def _adam_range(
    param: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    values: Any,
    rows: Any,
    order: Any,
    starts: Any,
    first: Any,
    last: Any,
    long: Any,
    totals: Any,
    form: Any,
    step_size: Any,
    one_minus_beta1: Any,
    one_minus_beta2: Any,
    eps: Any,
    weight_decay: Any,
    maximize: Any,
    tree: Any,
    rounded: Any,
    g: Any,
) -> None:
    """Groups first <= s < last of the gradient onto their rows.

    m += (1 - beta1) * (g - m);  v += (1 - beta2) * (g**2 - v);  p -= step_size * m / (sqrt(v) + eps)   (Kingma and Ba 2015, with
    the bias corrections in step_size, as torch.optim.SparseAdam).
    """
    width = param.shape[1]
    known = np.searchsorted(long, first)
    for s in range(first, last):
        if s + AHEAD < last:
            ahead = rows[s + AHEAD]
            prefetch_row(param, ahead)
            prefetch_row(exp_avg, ahead)
            prefetch_row(exp_avg_sq, ahead)
        if known < long.size and long[known] == s:
            level = 0
            for j in range(width):
                tree[0, j] = totals[known, j]
            known += 1
        else:
            level = reduce_rows(values, order, starts[s], starts[s + 1], SUM, form, tree)
        row = rows[s]
        for j in range(width):
            store(rounded, 0, j, tree[level, j], form)  # the gradient as coalesce would give it
        for j in range(width):
            g[j] = as_state(rounded[0, j], form)
        if maximize:
            for j in range(width):
                g[j] = -g[j]
        if weight_decay != 0:
            for j in range(width):
                g[j] += weight_decay * as_state(param[row, j], form)
        for j in range(width):
            m, v = exp_avg[row, j], exp_avg_sq[row, j]
            m += (g[j] - m) * one_minus_beta1
            v += (g[j] * g[j] - v) * one_minus_beta2
            exp_avg[row, j], exp_avg_sq[row, j] = m, v
            store(param, row, j, as_state(param[row, j], form) - step_size * (m / (np.sqrt(v) + eps)), form)


class Tables(NamedTuple):
    param: Any
    exp_avg: Any
    exp_avg_sq: Any
    max_exp_avg_sq: Any  # empty without AMSGrad


class Rates(NamedTuple):
    step_size: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    amsgrad: bool


def sparse_adam_flush(
    param: Array, exp_avg: Array, exp_avg_sq: Array, *, dtype: str, beta1: float, beta2: float, eps: float, modes: Any
) -> None:
    rates = Rates(0.0, beta1, beta2, eps, 0.0, modes.max_exp_avg_sq is not None)
    tables, flags, lazy = _arguments(param, exp_avg, exp_avg_sq, dtype, modes, True)
    _optim.run_flush(_adam_rows, tables, _optim.arithmetic_type(dtype, modes), flags, lazy, rates)


def _arguments(param: Array, exp_avg: Array, exp_avg_sq: Array, dtype: str, modes: Any, flush: bool) -> tuple[Any, ...]:
    largest = np.empty((0, 0), exp_avg.dtype) if modes.max_exp_avg_sq is None else modes.max_exp_avg_sq
    states = (_optim.bits(state, modes.state_dtype) for state in (exp_avg, exp_avg_sq, largest))
    return Tables(_optim.bits(param, dtype), *states), _optim.flags(dtype, modes, flush), _optim.lazy_arrays(modes)


@inlined
def _catch_up(p: Any, m: Any, v: Any, w: Any, row: Any, end: Any, flags: Any, lazy: Any, rates: Any) -> None:
    """The steps up to ``end`` that the row sat out."""
    since = _optim.clamped_last(lazy.last_step, row, end)
    if since == end:
        return
    count = lazy.row_step[row] if flags.by_row else since
    done = 0
    if flags.moments == EXACT and not (flags.by_row and count == 0):
        done = _replay(p, m, v, w, since, count, end, flags, lazy.history, rates)
    left = end - since - done
    if flags.moments != MASKED:
        _optim.multiply(m, _optim.power(rates.beta1, left))
        _optim.multiply(v, _optim.power(rates.beta2, left))
    if flags.lazy:
        _optim.multiply(p, _optim.decay_between(lazy.history, since + done, end))
    if flags.by_row and count > 0 and flags.moments != MASKED:
        lazy.row_step[row] = count + end - since


@inlined
def _replay(p: Any, m: Any, v: Any, w: Any, since: Any, count: Any, end: Any, flags: Any, history: Any, rates: Any) -> Any:
    """Steps with a zero gradient, one by one, until the row is at rest; returns how many."""
    real = p.dtype.type
    b1, b2 = _optim.power(rates.beta1, count), _optim.power(rates.beta2, count)
    for i in range(end - since):
        if i % REST_EVERY == 0 and _at_rest(p, m, w, since + i, end, flags, history, rates):
            return i
        b1, b2 = b1 * rates.beta1, b2 * rates.beta2
        if flags.lazy:
            _optim.multiply(p, _optim.decay_between(history, since + i, since + i + 1))
        _optim.multiply(m, rates.beta1)
        _optim.multiply(v, rates.beta2)
        _move(p, m, w, real(history[since + i, 0] * np.sqrt(1 - b2) / (1 - b1)), real(rates.eps * np.sqrt(1 - b2)))
    return end - since


@inlined
def _move(p: Any, m: Any, w: Any, size: Any, epsilon: Any) -> None:
    for j in range(p.size):
        p[j] -= size * (m[j] / (np.sqrt(w[j]) + epsilon))


@inlined
def _at_rest(p: Any, m: Any, w: Any, before: Any, end: Any, flags: Any, history: Any, rates: Any) -> Any:
    """Whether all the updates of steps before + 1 ... end together stay below the resolution of p: a geometric series."""
    ratio = rates.beta1 if rates.amsgrad else rates.beta1 / np.sqrt(rates.beta2)
    scale = history[end - 1, 2] * (ratio / ((1 - ratio) * (1 - rates.beta1)))
    resolution = flags.unit * (_optim.decay_between(history, before, end) if flags.lazy else 1.0)
    for j in range(p.size):
        if m[j] == 0 or not np.isfinite(p[j]):
            continue
        bound = np.float64(abs(m[j])) * scale
        if not (ratio < 1 and bound <= (resolution * np.float64(abs(p[j]))) * np.sqrt(np.float64(w[j]))):
            return False
    return True


@kernel
def _adam_rows(
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
    """_adam_range in all other modes. Groups (in a flush: rows) first <= s < last: the steps that the row sat out; then, but for
    a flush, Adam with decoupled decay (Loshchilov and Hutter 2019), the largest v (Reddi et al. 2018), one v a row (FBGEMM).
    """
    p, g, m, v = work[0], work[1], work[2], work[3]
    w = work[4] if rates.amsgrad else v
    real, width = p.dtype.type, p.size
    squares = np.empty(width)
    b2_of_step = _optim.power(rates.beta2, flags.step)
    known = np.searchsorted(gradient.long, first)
    for s in range(first, last):
        row = s
        if flags.flush:
            if lazy.last_step[row] >= flags.step:
                continue
        else:
            row = gradient.rows[s]
            if s + AHEAD < last:
                ahead = gradient.rows[s + AHEAD]
                prefetch_row(tables.param, ahead)
                prefetch_row(tables.exp_avg, ahead)
                prefetch_row(tables.exp_avg_sq, ahead)
        _optim.load_row(tables.param, row, flags.form, p)
        _optim.load_row(tables.exp_avg, row, flags.state_form, m)
        _optim.load_row(tables.exp_avg_sq, row, flags.state_form, v)
        if rates.amsgrad:
            _optim.load_row(tables.max_exp_avg_sq, row, flags.state_form, w)
        if flags.tracked:
            _catch_up(p, m, v, w, row, flags.step if flags.flush else flags.step - 1, flags, lazy, rates)
            lazy.last_step[row] = flags.step
        if not flags.flush:
            known = _optim.load_gradient(gradient, s, known, tree, rounded, g)
            if rates.weight_decay != 0:
                for j in range(width):
                    g[j] += real(rates.weight_decay) * p[j]
            if flags.decay != 1:
                _optim.multiply(p, flags.decay)
            for j in range(width):
                m[j] += (g[j] - m[j]) * real(1 - rates.beta1)
            if flags.rowwise:
                mean = real(_optim.mean_of_squares(g, squares))
                for j in range(width):
                    v[j] += (mean - v[j]) * real(1 - rates.beta2)
            else:
                for j in range(width):
                    v[j] += (g[j] * g[j] - v[j]) * real(1 - rates.beta2)
            if rates.amsgrad:
                for j in range(width):
                    w[j] = v[j] if v[j] > w[j] or v[j] != v[j] else w[j]
            size, b2 = rates.step_size, b2_of_step
            if flags.by_row:
                count = lazy.row_step[row] + 1
                lazy.row_step[row] = count
                b2 = _optim.power(rates.beta2, count)
                size = flags.lr * np.sqrt(1 - b2) / (1 - _optim.power(rates.beta1, count))
            _move(p, m, w, real(size), real(rates.eps * np.sqrt(1 - b2) if flags.moments == EXACT else rates.eps))
        _optim.store_row(tables.param, row, flags.form, p, flags, lazy, lazy.keys[0])
        _optim.store_row(tables.exp_avg, row, flags.state_form, m, flags, lazy, lazy.keys[1])
        _optim.store_row(tables.exp_avg_sq, row, flags.state_form, v, flags, lazy, lazy.keys[2])
        if rates.amsgrad:
            _optim.store_row(tables.max_exp_avg_sq, row, flags.state_form, w, flags, lazy, lazy.keys[3])
