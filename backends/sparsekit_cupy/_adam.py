"""Adam: group the gradient's rows, then one kernel that sums duplicates and updates each touched row."""

from typing import Any

from sparsekit_cupy import _optim
from sparsekit_cupy._coalesce import columns_by_rows, pack_size
from sparsekit_cupy._device import Device, current

_KEPT = 4  # numbers a column that a replay keeps: p, m, v, w


def sparse_adam_step(
    param: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    rows: Any,
    values: Any,
    *,
    dtype: str,
    step_size: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
    check: bool,
    modes: Any,
) -> bool:
    """As in the protocol. Waits for the device only to ``check``, at the end; a row out of range writes nothing anyway."""
    if rows.size == 0:
        return True
    device = current()
    gradient = _optim.gradient(device, param, rows, values, dtype)
    rates = (step_size, beta1, beta2, eps, weight_decay)
    if modes is None:
        tables = (param, exp_avg, exp_avg_sq)
        pack = pack_size(gradient.width, max(param.itemsize, exp_avg.itemsize), values, *tables)
        grid, block = columns_by_rows(device, max(1, gradient.width // pack), rows.size)
        name = f"sparsekit_adam_plain<{_optim.types(dtype, exp_avg.dtype.name)}, {pack}>"
        args = (*gradient, *tables, _optim.flags(None, maximize=maximize), *rates)
        device.launch("adam.cu", name, grid, block, args)
    else:
        flags = _optim.flags(modes, maximize=maximize)
        _launch(device, gradient, param, exp_avg, exp_avg_sq, dtype, rows.size, flags, rates, modes)
    return not (check and gradient.refused())


def sparse_adam_flush(
    param: Any, exp_avg: Any, exp_avg_sq: Any, *, dtype: str, beta1: float, beta2: float, eps: float, modes: Any
) -> None:
    """As in the protocol. Waits for nothing."""
    if len(param):
        flags, rates = _optim.flags(modes, flush=True), (0.0, beta1, beta2, eps, 0.0)
        _launch(current(), _optim.nothing(param), param, exp_avg, exp_avg_sq, dtype, len(param), flags, rates, modes)


def _launch(
    device: Device,
    gradient: _optim.Gradient,
    param: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    dtype: str,
    rows: int,
    flags: int,
    rates: tuple[float, ...],
    modes: Any,
) -> None:
    scratch = None
    if modes.moments == "exact":
        real = "float64" if "float64" in (dtype, modes.state_dtype) else "float32"
        scratch = device.xp.empty((_optim.warps(device, rows), param.shape[1], _KEPT), real)
    tables = (param, exp_avg, exp_avg_sq, modes.max_exp_avg_sq, modes.row_step)
    _optim.launch("adam", gradient, tables, dtype, rows, flags, rates, modes, keys=4, more=(scratch,))
