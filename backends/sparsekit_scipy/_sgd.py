"""SGD: sum the duplicates, then plain array arithmetic on the touched rows."""

from typing import Any

import numpy as np

from sparsekit_scipy import _optim
from sparsekit_scipy._optim import Array, Float64, Index


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
    real = _optim.arithmetic_type(dtype, modes.state_dtype)
    summed = _optim.gradient(rows, values, len(param), dtype, real, maximize)
    if summed is None:
        return False
    touched, g = summed
    with np.errstate(all="ignore"):
        p, b = _load(param, momentum_buffer, touched, dtype, real, modes)
        if modes.last_step is not None:
            p, b = _catch_up(p, b, touched, modes.step - 1, real, momentum, nesterov, modes)
        if weight_decay:
            g = g + real(weight_decay) * p
        if modes.decay != 1:
            p = p * real(modes.decay)
        if b is not None:
            b = g if modes.step == 1 else b * real(momentum) + g * real(1 - dampening)
            g = g + b * real(momentum) if nesterov else b
        p = p - real(modes.lr) * g
        _store(p, b, param, momentum_buffer, touched, dtype, modes)
    return True


def sparse_sgd_flush(
    param: Array, momentum_buffer: Array | None, *, dtype: str, momentum: float, nesterov: bool, modes: Any
) -> None:
    real = _optim.arithmetic_type(dtype, modes.state_dtype)
    rows = np.flatnonzero(modes.last_step < modes.step)
    with np.errstate(all="ignore"):
        p, b = _load(param, momentum_buffer, rows, dtype, real, modes)
        p, b = _catch_up(p, b, rows, modes.step, real, momentum, nesterov, modes)
        _store(p, b, param, momentum_buffer, rows, dtype, modes)


def _load(
    param: Array, momentum_buffer: Array | None, rows: Index, dtype: str, real: type, modes: Any
) -> tuple[Array, Array | None]:
    p = _optim.widen(param[rows], dtype, real)
    return p, None if momentum_buffer is None else _optim.widen(momentum_buffer[rows], modes.state_dtype, real)


def _store(p: Array, b: Array | None, param: Array, momentum_buffer: Array | None, rows: Index, dtype: str, modes: Any) -> None:
    keys = modes.keys or (None, None)
    _optim.store(param, rows, p, dtype, keys[0], modes.row_numbers)
    if b is not None and momentum_buffer is not None:
        _optim.store(momentum_buffer, rows, b, modes.state_dtype, keys[1], modes.row_numbers)
    if modes.last_step is not None:
        modes.last_step[rows] = modes.step


def _catch_up(
    p: Array, b: Array | None, rows: Index, end: int, real: type, momentum: float, nesterov: bool, modes: Any
) -> tuple[Array, Array | None]:
    """The steps that each row sat out, up to ``end``."""
    last = _optim.clamped_last(modes.last_step, rows, end)
    if modes.lazy:
        p = _optim.decayed(p, rows, end, real, modes)
    if b is None or modes.moments == "masked":
        return p, b
    if modes.moments == "exact":
        moving = np.flatnonzero((b != 0).any(axis=1) & (last < end))
        sizes = _sum_of_sizes(last[moving], end, _optim.unit(real), momentum, nesterov, modes)[:, None]
        p[moving] = p[moving] - sizes.astype(real) * b[moving]
    return p, b * _optim.power(momentum, end - last).astype(real)[:, None]


def _sum_of_sizes(last: Index, end: int, unit: float, momentum: float, nesterov: bool, modes: Any) -> Float64:
    """By how much of its buffer each row moves in the steps it sat out, until what is left does not show in the sum."""
    total, weight = np.zeros(len(last)), np.ones(len(last))
    active, s = np.flatnonzero(last < end), last.copy()
    while active.size:
        s[active] += 1
        now = s[active]
        weight[active] = weight[active] * momentum
        size = modes.history[now - 1, 0] * weight[active]
        if modes.lazy:
            size = size * _optim.decay_between(modes.history, now, np.full_like(now, end))
        total[active] = total[active] + size
        left = (modes.history[end - 1, 2] * weight[active]) * (momentum / (1 - momentum))
        active = active[(now < end) & ~(left <= unit * total[active])]
    return total * momentum if nesterov else total
