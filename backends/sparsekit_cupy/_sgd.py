"""SGD: group the gradient's rows, then one kernel that sums duplicates and updates each touched row."""

from typing import Any

from sparsekit_cupy import _optim
from sparsekit_cupy._device import current


def sparse_sgd_step(
    param: Any,
    momentum_buffer: Any | None,
    rows: Any,
    values: Any,
    *,
    dtype: str,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
    maximize: bool,
    check: bool,
    modes: Any,
) -> bool:
    """As in the protocol. Waits for the device only to ``check``, at the end; a row out of range writes nothing anyway."""
    if rows.size == 0:
        return True
    gradient = _optim.gradient(current(), param, rows, values, dtype)
    flags = _optim.flags(modes, maximize=maximize, nesterov=nesterov)
    rates = (momentum, dampening, weight_decay)
    _optim.launch("sgd", gradient, (param, momentum_buffer), dtype, rows.size, flags, rates, modes)
    return not (check and gradient.refused())


def sparse_sgd_flush(param: Any, momentum_buffer: Any | None, *, dtype: str, momentum: float, nesterov: bool, modes: Any) -> None:
    """As in the protocol. Waits for nothing."""
    if len(param):
        flags = _optim.flags(modes, flush=True, nesterov=nesterov)
        rates = (momentum, 0.0, 0.0)
        _optim.launch("sgd", _optim.nothing(param), (param, momentum_buffer), dtype, len(param), flags, rates, modes)
