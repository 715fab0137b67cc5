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
    _launch(gradient, param, state_sum, dtype, rows.size, _optim.flags(modes, maximize=maximize), (eps, weight_decay), modes)
    return not (check and gradient.refused())


def sparse_adagrad_flush(param: Any, *, dtype: str, modes: Any) -> None:
    """As in the protocol. Waits for nothing."""
    if len(param):
        _launch(_optim.nothing(param), param, None, dtype, len(param), _optim.flags(modes, flush=True), (0.0, 0.0), modes)


def _launch(
    gradient: _optim.Gradient,
    param: Any,
    state_sum: Any,
    dtype: str,
    rows: int,
    flags: int,
    rates: tuple[float, ...],
    modes: Any,
) -> None:
    args = (
        *gradient,
        len(param),
        *(param, state_sum, modes.last_step, modes.history, modes.row_numbers),
        *_optim.keys(modes, 2),
        *(flags, modes.step, modes.lr, modes.decay, *rates),
    )
    _optim.launch(current(), "adagrad.cu", f"sparsekit_adagrad<{_optim.types(dtype, modes.state_dtype)}>", rows, args)
