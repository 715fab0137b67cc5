"""What the optimizer steps share: the gradient grouped by row, the arguments that every kernel of them takes."""

from typing import Any, NamedTuple

from sparsekit_cupy._coalesce import C_TYPES, reduce_chunks
from sparsekit_cupy._device import Device, current
from sparsekit_cupy._group import group

_THREADS, _WARPS = 256, 8  # of a block, as in optim.cuh
_FLUSH, _MAXIMIZE, _LAZY, _ROWWISE, _AT_RANDOM, _NESTEROV = 1, 2, 4, 32, 64, 128  # as in optim.cuh
_MOMENTS = {"masked": 0, "decayed": 8, "exact": 16}


class Gradient(NamedTuple):
    """Entries sorted by row, as the kernels take them."""

    words: Any
    position_bits: int
    starts: Any
    runs: Any
    rows: Any
    bad: Any
    values: Any
    width: int
    partial: Any

    def refused(self) -> bool:
        """Whether a row lies outside the table. Waits for the device."""
        return bool(self.bad.get()[0])


def gradient(device: Device, param: Any, rows: Any, values: Any, dtype: str) -> Gradient:
    """Group ``rows (n,)``, n > 0, and reduce long runs. Waits for nothing."""
    groups = group(device, rows[None], (len(param),))
    starts = groups.starts(device, rows.size)  # there are at most so many runs
    partial = reduce_chunks(device, groups, starts, values, dtype) if values.shape[1] else None
    return Gradient(groups.words, groups.position_bits, starts, groups.runs, rows, groups.bad, values, values.shape[1], partial)


def nothing(param: Any) -> Gradient:
    """What a flush has in the place of a gradient."""
    return Gradient(None, 0, None, None, None, None, None, param.shape[1], None)


def flags(modes: Any, *, flush: bool = False, maximize: bool = False, nesterov: bool = False) -> int:
    chosen = [(flush, _FLUSH), (maximize, _MAXIMIZE), (nesterov, _NESTEROV)]
    if modes is not None:
        chosen += [(modes.lazy, _LAZY), (modes.rowwise, _ROWWISE), (modes.keys is not None, _AT_RANDOM)]
        chosen += [(True, _MOMENTS[modes.moments])]
    return sum(bit for is_set, bit in chosen if is_set)


def types(dtype: str, state_dtype: str) -> str:
    return f"{C_TYPES[dtype]}, {C_TYPES[state_dtype]}"


def warps(device: Device, rows: int) -> int:
    """How many warps launch starts for so many rows."""
    return _WARPS * device.blocks(rows, _WARPS)


def launch(
    name: str,
    gradient: Gradient,
    tables: tuple[Any, ...],
    dtype: str,
    rows: int,
    flags: int,
    rates: tuple[float, ...],
    modes: Any,
    keys: int = 2,
    more: tuple[Any, ...] = (),
) -> None:
    """A warp a row, of so many. ``tables``: param first. ``rates``, ``more`` and the number of keys are the kernel's own."""
    device = current()
    signed = [key - (1 << 64) if key >> 63 else key for key in modes.keys or ()]
    args = (
        *(*gradient, len(tables[0])),
        *(*tables, modes.last_step, modes.history, modes.row_numbers),
        *(*signed, *[0] * keys)[:keys],
        *(flags, modes.step, modes.lr, modes.decay, *rates),
        *more,
    )
    kernel = f"sparsekit_{name}<{types(dtype, modes.state_dtype)}>"
    device.launch(f"{name}.cu", kernel, device.blocks(rows, _WARPS), _THREADS, args)
