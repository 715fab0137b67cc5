"""Optimizer steps: sum the duplicates, then plain array arithmetic on the touched rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_scipy import _bfloat16
from sparsekit_scipy._coalesce import coalesce

Array = NDArray[Any]
Index = NDArray[np.int64]


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
) -> bool:
    summed = coalesce(
        rows[None], values, param.shape[:1], dtype=dtype, reduce="sum", return_inverse=False, return_counts=False, check=True
    )
    if summed is None:
        return False
    touched = summed[0][0]
    state = exp_avg.dtype.type
    g, p, m, v = _widen(summed[1], dtype, state), _widen(param[touched], dtype, state), exp_avg[touched], exp_avg_sq[touched]
    with np.errstate(all="ignore"):  # infinities and NaN in the gradient reach the parameter, as in torch
        if maximize:
            g = -g
        if weight_decay:
            g = g + state(weight_decay) * p
        m = m + (g - m) * state(1 - beta1)
        v = v + (g * g - v) * state(1 - beta2)
        p = p - state(step_size) * (m / (np.sqrt(v) + state(eps)))
        param[touched] = _bfloat16.from_float32(p) if dtype == "bfloat16" else p.astype(param.dtype)
    exp_avg[touched], exp_avg_sq[touched] = m, v
    return True


def _widen(x: Array, dtype: str, state: type) -> Array:
    return _bfloat16.to_float32(x) if dtype == "bfloat16" else x.astype(state)
