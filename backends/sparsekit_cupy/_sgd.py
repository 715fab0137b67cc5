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
    _launch(gradient, param, momentum_buffer, dtype, rows.size, flags, (momentum, dampening, weight_decay), modes)
    return not (check and gradient.refused())


def sparse_sgd_flush(param: Any, momentum_buffer: Any | None, *, dtype: str, momentum: float, nesterov: bool, modes: Any) -> None:
    """As in the protocol. Waits for nothing."""
    if len(param):
        flags = _optim.flags(modes, flush=True, nesterov=nesterov)
        _launch(_optim.nothing(param), param, momentum_buffer, dtype, len(param), flags, (momentum, 0.0, 0.0), modes)


def _launch(
    gradient: _optim.Gradient,
    param: Any,
    momentum_buffer: Any | None,
    dtype: str,
    rows: int,
    flags: int,
    rates: tuple[float, ...],
    modes: Any,
) -> None:
    args = (
        *gradient,
        len(param),
        *(param, momentum_buffer, modes.last_step, modes.history, modes.row_numbers),
        *_optim.keys(modes, 2),
        *(flags, modes.step, modes.lr, modes.decay, *rates),
    )
    _optim.launch(current(), "sgd.cu", f"sparsekit_sgd<{_optim.types(dtype, modes.state_dtype)}>", rows, args)
