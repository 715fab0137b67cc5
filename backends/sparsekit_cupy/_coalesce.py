"""coalesce: sort, find the runs, reduce each. One wait for the device, for the number of results."""

from typing import Any

from sparsekit_cupy._device import Device, current
from sparsekit_cupy._group import Groups, group

_BLOCK = 32

# The C++ type of an array of each dtype. Sums and products of integers wrap, so their sign makes no difference.
C_TYPES = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
    "bool": "u8",
    **{f"uint{8 * size}": name for size, name in ((1, "u8"), (2, "u16"), (4, "u32"), (8, "u64"))},
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "i64",
}
_WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128", "bool": "uint8"}
# bool: or and and, which are max and min of 0 and 1.
_OF_BOOL = {"sum": "Max", "max": "Max", "prod": "Min", "min": "Min"}


def coalesce(
    indices: Any,
    values: Any,
    dims: tuple[int, ...],
    *,
    dtype: str,
    reduce: str,
    return_inverse: bool,
    return_counts: bool,
    check: bool,
) -> tuple[Any, Any, Any | None, Any | None] | None:
    """As in the protocol. Waits for the device once, to learn the number of results and whether an index is out of range."""
    device = current()
    xp, (ndim, n), width = device.xp, indices.shape, values.shape[1]
    if n == 0:
        inverse, counts = (xp.empty(0, xp.int64) if wanted else None for wanted in (return_inverse, return_counts))
        return xp.empty((ndim, 0), xp.int64), xp.empty((0, width), values.dtype), inverse, counts
    groups = group(device, indices, dims)
    runs, bad = (int(x) for x in xp.concatenate((groups.runs, groups.bad)).get())  # waits for the device
    if check and bad:
        return None
    inverse = xp.empty(n, xp.int64) if return_inverse else None
    start = groups.starts(device, runs, inverse)
    out_indices = xp.empty((ndim, runs), xp.int64)
    counts = xp.empty(runs, xp.int64) if return_counts else None
    if ndim or return_counts:
        args = (groups.words, groups.position_bits, start, runs, indices, n, ndim, out_indices, counts)
        device.launch("group.cu", "sparsekit_coordinates", device.blocks(runs), 256, args)
    out = xp.empty((runs, width), values.dtype)
    if width:
        _reduce(device, groups, start, runs, values, out, dtype, reduce)
    return out_indices, out, inverse, counts


def _reduce(device: Device, groups: Groups, start: Any, runs: int, values: Any, out: Any, dtype: str, reduce: str) -> None:
    op = _OF_BOOL[reduce] if dtype == "bool" else reduce.capitalize()
    if dtype.startswith("int") and reduce in ("sum", "prod"):
        dtype = f"u{dtype}"
    partial = reduce_chunks(device, groups, start, values, dtype, op)
    width = values.shape[1]
    pack = pack_size(width, values.itemsize, values, out) if op == "Sum" else 1
    grid, block = columns_by_rows(device, width // pack, runs)
    args = (groups.words, groups.position_bits, start, runs, values, width, partial, out)
    device.launch("coalesce.cu", f"sparsekit_reduce<{C_TYPES[dtype]}, {op}, {pack}>", grid, block, args)


def reduce_chunks(device: Device, groups: Groups, start: Any, values: Any, dtype: str, op: str = "Sum") -> Any:
    """Scratch with what reduce.cuh wants to know of runs of more than 32 entries; None where there can be none."""
    n, width = values.shape
    if n <= _BLOCK:
        return None
    xp = device.xp
    partial = xp.empty((n // _BLOCK + 1, width), _WIDE.get(dtype, dtype))
    x = min(8, power_of_two(width))
    grid = (device.blocks(n // _BLOCK + 1, x * _BLOCK), min(-(-width // x), 64))
    args: tuple[Any, ...] = (groups.words, n, groups.position_bits, start, groups.runs, values, width, partial)
    device.launch("coalesce.cu", f"sparsekit_reduce_chunks<{C_TYPES[dtype]}, {op}>", grid, (x, _BLOCK), args)
    if n > _BLOCK**2:
        grid = (device.blocks(n, _BLOCK**2), grid[1])
        args = (start, groups.runs, n, width, partial)
        device.launch("coalesce.cu", f"sparsekit_join_chunks<{C_TYPES[dtype]}, {op}>", grid, (x, _BLOCK), args)
    return partial


def power_of_two(n: int) -> int:
    """The least power of two that is at least n >= 1."""
    return 1 << (n - 1).bit_length()


def columns_by_rows(device: Device, columns: int, rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and block of 256 threads, x over columns, y over rows; where rows are few and long, the grid's y over columns too."""
    x = min(256, power_of_two(columns))
    grid_x = device.blocks(rows, 256 // x)
    grid_y = min(-(-columns // x), max(1, device.blocks(columns * rows) // grid_x))
    return (grid_x, grid_y), (x, 256 // x)


def pack_size(width: int, itemsize: int, *arrays: Any) -> int:
    """How many columns one instruction of 16 bytes moves: more than 1 where rows are aligned for it."""
    pack = 16 // itemsize
    if itemsize == 1 or pack <= 1 or width % pack or any(a.data.ptr % 16 for a in arrays):
        return 1
    return pack


def is_coalesced(indices: Any) -> bool:
    """As in the protocol. Waits for the device."""
    device = current()
    ndim, n = indices.shape
    answer = device.xp.ones(1, device.xp.int32)
    if n > 1:
        device.launch("group.cu", "sparsekit_is_coalesced", device.blocks(n - 1), 256, (indices, n, ndim, answer))
    return bool(answer.get()[0])
