"""Adam: sum the duplicates, then plain array arithmetic on the touched rows."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_scipy import _bfloat16, _optim
from sparsekit_scipy._optim import Array, Float64, Index


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
    state_dtype = exp_avg.dtype.name if modes is None else modes.state_dtype
    real = _optim.arithmetic_type(dtype, state_dtype)
    summed = _optim.gradient(rows, values, len(param), dtype, real, maximize)
    if summed is None:
        return False
    touched, g = summed
    if modes is not None:
        with np.errstate(all="ignore"):
            rates = _Rates(step_size, beta1, beta2, eps)
            _step_with_modes(param, exp_avg, exp_avg_sq, touched, g, dtype, real, rates, weight_decay, modes)
        return True
    p, m, v = _optim.widen(param[touched], dtype, real), exp_avg[touched], exp_avg_sq[touched]
    with np.errstate(all="ignore"):  # infinities and NaN in the gradient reach the parameter, as in torch
        if weight_decay:
            g = g + real(weight_decay) * p
        m = m + (g - m) * real(1 - beta1)
        v = v + (g * g - v) * real(1 - beta2)
        p = p - real(step_size) * (m / (np.sqrt(v) + real(eps)))
        param[touched] = _bfloat16.from_float32(p) if dtype == "bfloat16" else p.astype(param.dtype)
    exp_avg[touched], exp_avg_sq[touched] = m, v
    return True


def sparse_adam_flush(
    param: Array, exp_avg: Array, exp_avg_sq: Array, *, dtype: str, beta1: float, beta2: float, eps: float, modes: Any
) -> None:
    real = _optim.arithmetic_type(dtype, modes.state_dtype)
    rows = np.flatnonzero(modes.last_step < modes.step)
    with np.errstate(all="ignore"):
        x = _load(param, exp_avg, exp_avg_sq, rows, dtype, real, modes)
        _catch_up(x, rows, modes.step, real, _Rates(0.0, beta1, beta2, eps), modes)
        _store(x, param, exp_avg, exp_avg_sq, rows, dtype, modes)


@dataclass
class _Rates:
    step_size: float
    beta1: float
    beta2: float
    eps: float


@dataclass
class _Rows:
    """The rows at work, in the arithmetic type."""

    p: Array
    m: Array
    v: Array
    w: Array | None  # the largest v so far
    count: Index | None  # updates so far

    @property
    def denominator(self) -> Array:
        return self.v if self.w is None else self.w


def _load(param: Array, exp_avg: Array, exp_avg_sq: Array, rows: Index, dtype: str, real: type, modes: Any) -> _Rows:
    largest = modes.max_exp_avg_sq
    return _Rows(
        p=_optim.widen(param[rows], dtype, real),
        m=_optim.widen(exp_avg[rows], modes.state_dtype, real),
        v=_optim.widen(exp_avg_sq[rows], modes.state_dtype, real),
        w=None if largest is None else _optim.widen(largest[rows], modes.state_dtype, real),
        count=None if modes.row_step is None else modes.row_step[rows],
    )


def _store(x: _Rows, param: Array, exp_avg: Array, exp_avg_sq: Array, rows: Index, dtype: str, modes: Any) -> None:
    keys = (None,) * 4 if modes.keys is None else modes.keys
    _optim.store(param, rows, x.p, dtype, keys[0], modes.row_numbers)
    _optim.store(exp_avg, rows, x.m, modes.state_dtype, keys[1], modes.row_numbers)
    _optim.store(exp_avg_sq, rows, x.v, modes.state_dtype, keys[2], modes.row_numbers)
    if x.w is not None:
        _optim.store(modes.max_exp_avg_sq, rows, x.w, modes.state_dtype, keys[3], modes.row_numbers)
    if x.count is not None:
        modes.row_step[rows] = x.count
    if modes.last_step is not None:
        modes.last_step[rows] = modes.step


def _step_with_modes(
    param: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    rows: Index,
    g: Array,
    dtype: str,
    real: type,
    rates: _Rates,
    weight_decay: float,
    modes: Any,
) -> None:
    x = _load(param, exp_avg, exp_avg_sq, rows, dtype, real, modes)
    if modes.last_step is not None:
        _catch_up(x, rows, modes.step - 1, real, rates, modes)
    if weight_decay:
        g = g + real(weight_decay) * x.p
    if modes.decay != 1:
        x.p = x.p * real(modes.decay)
    x.m = x.m + (g - x.m) * real(1 - rates.beta1)
    square = _optim.mean_of_squares(g).astype(real) if modes.rowwise else g * g
    x.v = x.v + (square - x.v) * real(1 - rates.beta2)
    if x.w is not None:
        x.w = np.maximum(x.w, x.v)
    if x.count is None:
        b2 = _optim.power(rates.beta2, np.full(len(rows), modes.step))
        size = np.full(len(rows), rates.step_size)
    else:
        x.count = x.count + 1
        b2 = _optim.power(rates.beta2, x.count)
        size = modes.lr * np.sqrt(1 - b2) / (1 - _optim.power(rates.beta1, x.count))
    _move(x, size, _epsilon(rates.eps, b2, modes), real)
    _store(x, param, exp_avg, exp_avg_sq, rows, dtype, modes)


def _epsilon(eps: float, b2: Float64, modes: Any) -> Float64:
    """Dense Adam divides the root by sqrt(1 - b2) before it adds eps."""
    return eps * np.sqrt(1 - b2) if modes.moments == "exact" else np.full_like(b2, eps)


def _move(x: _Rows, size: Float64, epsilon: Float64, real: type) -> None:
    size, epsilon = size.astype(real)[:, None], epsilon.astype(real)[:, None]
    x.p = x.p - size * (x.m / (np.sqrt(x.denominator) + epsilon))


def _catch_up(x: _Rows, rows: Index, end: int, real: type, rates: _Rates, modes: Any) -> None:
    """The steps that each row sat out, up to ``end``."""
    last = _optim.clamped_last(modes.last_step, rows, end)
    idle = end - last
    done = _replay(x, last, idle, end, real, rates, modes) if modes.moments == "exact" else np.zeros_like(idle)
    left = idle - done
    if modes.moments != "masked":
        x.m = x.m * _optim.power(rates.beta1, left).astype(real)[:, None]
        x.v = x.v * _optim.power(rates.beta2, left).astype(real)[:, None]
    if modes.lazy:
        x.p = x.p * _optim.decay_between(modes.history, last + done, last + idle).astype(real)[:, None]
    if x.count is not None and modes.moments != "masked":
        x.count = np.where(x.count > 0, x.count + idle, x.count)


def _replay(x: _Rows, last: Index, idle: Index, end: int, real: type, rates: _Rates, modes: Any) -> Index:
    """Steps with a zero gradient, one by one, until a row is at rest; returns how many of each row."""
    done = np.zeros_like(idle)
    count = last if x.count is None else x.count
    b1, b2 = _optim.power(rates.beta1, count), _optim.power(rates.beta2, count)
    active = np.flatnonzero((idle > 0) & (True if x.count is None else x.count > 0))
    while active.size:
        some = _Rows(x.p[active], x.m[active], x.v[active], None if x.w is None else x.w[active], None)
        before = last[active] + done[active]
        if done[active[0]] % _optim.REST_EVERY == 0:  # the active ones are equally far
            awake = ~_at_rest(some, before, end, real, rates, modes)
            if not awake.all():
                active = active[awake]
                continue
        b1[active], b2[active] = b1[active] * rates.beta1, b2[active] * rates.beta2
        if modes.lazy:
            some.p = some.p * _optim.decay_between(modes.history, before, before + 1).astype(real)[:, None]
        some.m, some.v = some.m * real(rates.beta1), some.v * real(rates.beta2)
        size = modes.history[before, 0] * np.sqrt(1 - b2[active]) / (1 - b1[active])
        _move(some, size, _epsilon(rates.eps, b2[active], modes), real)
        x.p[active], x.m[active], x.v[active] = some.p, some.m, some.v
        done[active] += 1
        active = active[done[active] < idle[active]]
    return done


def _at_rest(x: _Rows, before: Index, end: int, real: type, rates: _Rates, modes: Any) -> NDArray[np.bool]:
    """Whether all the updates of steps before + 1 ... end together stay below the resolution of p: a geometric series."""
    ratio = rates.beta1 if x.w is not None else rates.beta1 / math.sqrt(rates.beta2) if rates.beta2 else math.inf
    still = ~np.isfinite(x.p) | (x.m == 0)
    if ratio < 1:
        bound = np.abs(x.m.astype(np.float64)) * (modes.history[end - 1, 2] * (ratio / ((1 - ratio) * (1 - rates.beta1))))
        decay = _optim.decay_between(modes.history, before, np.full_like(before, end)) if modes.lazy else np.ones(len(before))
        resolution = (_optim.unit(real) * decay)[:, None] * np.abs(x.p.astype(np.float64))
        still |= bound <= resolution * np.sqrt(x.denominator.astype(np.float64))
    rows: NDArray[np.bool] = still.all(axis=1)
    return rows
