"""Adagrad: group the gradient's rows, then one kernel that sums duplicates and updates each touched row."""

from typing import Any

from sparsekit_cupy import _optim
from sparsekit_cupy._device import current


def sparse_adagrad_step(
    param: Any,
    state_sum: Any,
    rows: Any,
    values: Any,
    *,
    dtype: str,
    eps: float,
    weight_decay: float,
    maximize: bool,
    check: bool,
    modes: Any,
) -> bool:
    """As in the protocol. Waits for the device only to ``check``, at the end; a row out of range writes nothing anyway."""
    if rows.size == 0:
        return True
    gradient = _optim.gradient(current(), param, rows, values, dtype)
    flags, rates = _optim.flags(modes, maximize=maximize), (eps, weight_decay)
    _optim.launch("adagrad", gradient, (param, state_sum), dtype, rows.size, flags, rates, modes)
    return not (check and gradient.refused())


def sparse_adagrad_flush(param: Any, *, dtype: str, modes: Any) -> None:
    """As in the protocol. Waits for nothing."""
    if len(param):
        flags, rates = _optim.flags(modes, flush=True), (0.0, 0.0)
        _optim.launch("adagrad", _optim.nothing(param), (param, None), dtype, len(param), flags, rates, modes)
