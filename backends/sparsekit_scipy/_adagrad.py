"""Adagrad: sum the duplicates, then plain array arithmetic on the touched rows."""

from typing import Any

import numpy as np

from sparsekit_scipy import _optim
from sparsekit_scipy._optim import Array, Index


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
    real = _optim.arithmetic_type(dtype, modes.state_dtype)
    summed = _optim.gradient(rows, values, len(param), dtype, real, maximize)
    if summed is None:
        return False
    touched, g = summed
    keys = modes.keys or (None, None)
    with np.errstate(all="ignore"):
        p = _optim.widen(param[touched], dtype, real)
        total = _optim.widen(state_sum[touched], modes.state_dtype, real)
        if modes.lazy:
            p = _optim.decayed(p, touched, modes.step - 1, real, modes)
        if weight_decay:
            g = g + real(weight_decay) * p
        if modes.decay != 1:
            p = p * real(modes.decay)
        total = total + (_optim.mean_of_squares(g).astype(real) if modes.rowwise else g * g)
        p = p - real(modes.lr) * (g / (np.sqrt(total) + real(eps)))
        _optim.store(param, touched, p, dtype, keys[0], modes.row_numbers)
        _optim.store(state_sum, touched, total, modes.state_dtype, keys[1], modes.row_numbers)
    if modes.last_step is not None:
        modes.last_step[touched] = modes.step
    return True


def sparse_adagrad_flush(param: Array, *, dtype: str, modes: Any) -> None:
    real = _optim.arithmetic_type(dtype, modes.state_dtype)
    rows = np.flatnonzero(modes.last_step < modes.step)
    with np.errstate(all="ignore"):
        p = _optim.decayed(_optim.widen(param[rows], dtype, real), rows, modes.step, real, modes)
        _optim.store(param, rows, p, dtype, modes.keys[0] if modes.keys else None, modes.row_numbers)
    modes.last_step[rows] = modes.step
