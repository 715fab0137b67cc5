"""What the optimizer steps share: checks of arrays and modes, tables for the backend, the history of the lazy modes."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsekit import _validate
from sparsekit._dlpack import Raw, import_array, namespace, same_place
from sparsekit._protocol import Array, Index, Modes

WEIGHT_DECAY_MODES = ("l2", "decoupled", "decoupled_lazy")
MOMENTS = ("masked", "decayed", "exact")
ROUNDINGS = ("nearest", "stochastic")
_OPTIONAL = ("max_exp_avg_sq", "row_step", "last_step", "history", "momentum_buffer")
_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15

Raws = dict[str, Raw]


def import_arrays(arrays: dict[str, Any]) -> Raws:
    """The arrays by name, of one library and on one device; None means not given, where it may."""
    raws = {name: import_array(x, name) for name, x in arrays.items() if x is not None or name not in _OPTIONAL}
    same_place(list(raws.values()), list(raws))
    return raws


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_given(value: Any, name: str, needed: bool, when: str) -> None:
    """An argument that a mode needs must be there, and one that no mode in use needs must not."""
    if needed and value is None:
        raise ValueError(f"{name} must be given {when}, got None")
    if not needed and value is not None:
        raise ValueError(f"{name} is used only {when}; expected None, got {type(value).__name__}")


def check_modes(weight_decay_mode: Any, moments: Any, last_step: Any, history: Any, rounding: Any, seed: Any) -> None:
    """Names of modes, and that what they need is given and nothing else."""
    check_choice(weight_decay_mode, "weight_decay_mode", WEIGHT_DECAY_MODES)
    check_choice(moments, "moments", MOMENTS)
    check_choice(rounding, "rounding", ROUNDINGS)
    lazy = weight_decay_mode == "decoupled_lazy"
    when = 'with weight_decay_mode="decoupled_lazy"'
    check_given(last_step, "last_step", lazy or moments != "masked", f'{when} or moments="decayed" or "exact"')
    check_given(history, "history", lazy or moments == "exact", f'{when} or moments="exact"')
    check_given(seed, "seed", rounding == "stochastic", 'with rounding="stochastic"')


def check_param(param: Raw, values: Raw | None) -> None:
    if param.dtype not in _validate.REAL_FLOATS:
        raise TypeError(f"param must have a real float dtype ({', '.join(_validate.REAL_FLOATS)}), got {param.dtype}")
    if values is not None and values.dtype != param.dtype:
        raise TypeError(f"values must have param's dtype {param.dtype}, got {values.dtype}")


def default_state(param: Raw) -> str:
    return "float64" if param.dtype == "float64" else "float32"


def check_states(raws: Raws, names: tuple[str, ...]) -> None:
    """Dtypes of moments: as the first, which may be any real float for a param of at most 32 bits."""
    param = raws["param"]
    for name in names:
        if name not in raws:
            continue
        dtype, first = raws[name].dtype, raws[names[0]].dtype
        if param.dtype == "float64" and dtype != "float64":
            raise TypeError(f"{name} must have dtype float64 for a float64 param, got {dtype}")
        if dtype not in _validate.REAL_FLOATS:
            raise TypeError(f"{name} must have a real float dtype ({', '.join(_validate.REAL_FLOATS)}), got {dtype}")
        if dtype != first:
            raise TypeError(f"{name} must have the dtype of {names[0]}, {first} (float32 by default), got {dtype}")


def check_gradient(shape: tuple[int, ...], idx: Array, values: Array) -> tuple[int, ...]:
    """The sparse dimensions of param, after checking that indices and values fit it."""
    sparse_ndim, nnz = idx.shape
    if values.ndim < 1 or values.shape[0] != nnz:
        raise ValueError(f"values must have one entry for each of the {nnz} columns of indices, got shape {values.shape}")
    if sparse_ndim + values.ndim - 1 != len(shape):
        raise ValueError(
            f"param of shape {shape} must have the {sparse_ndim} sparse dimensions of indices and the {values.ndim - 1} dense "
            "dimensions of values"
        )
    if values.shape[1:] != shape[sparse_ndim:]:
        raise ValueError(f"the dense dimensions of values must be param's {shape[sparse_ndim:]}, got {values.shape[1:]}")
    return shape[:sparse_ndim]


def dims_of_last_step(outputs: Raws) -> tuple[int, ...]:
    """The sparse dimensions of param, as a flush learns them."""
    shape, dims = outputs["param"].array.shape, outputs["last_step"].array.shape
    if dims != shape[: len(dims)]:
        raise ValueError(f"last_step must have the shape of the sparse dimensions of param of shape {shape}, got {dims}")
    return dims


def check_outputs(outputs: Raws, dims: tuple[int, ...], row_shaped: tuple[str, ...] = ()) -> None:
    """Writeable, of param's shape (or, for the names in row_shaped, its sparse dimensions ``dims``), no two sharing memory."""
    shape = outputs["param"].array.shape
    for name, out in outputs.items():
        _validate.check_output(out, name)
        if name in row_shaped:
            if out.array.shape != dims:
                raise ValueError(f"{name} must have the shape {dims} of param's sparse dimensions, got {out.array.shape}")
            if name in ("last_step", "row_step") and out.dtype != "int64":
                raise TypeError(f"{name} must have dtype int64, got {out.dtype}")
        elif out.array.shape != shape:
            raise ValueError(f"{name} must have param's shape {shape}, got {out.array.shape}")
    check_distinct(outputs)


def check_distinct(outputs: Raws) -> None:
    places = {name: out.array if out.device == "cpu" else _validate.addresses(out.array) for name, out in outputs.items()}
    for (one, a), (other, b) in itertools.combinations(places.items(), 2):
        # Bounds first: they decide nearly always. Exact for strided views that interleave.
        if np.may_share_memory(a, b) and np.shares_memory(a, b):
            raise ValueError(f"{one} and {other} must not share memory; each is updated in place")


def check_history(history: Raw, step: int, outputs: Raws) -> None:
    _validate.check_output(history, "history")
    a = history.array
    if history.dtype != "float64":
        raise TypeError(f"history must have dtype float64, got {history.dtype}")
    if a.ndim != 2 or a.shape[1] != 3:
        raise ValueError(f"history must have shape (capacity, 3), got {a.shape}")
    if a.shape[0] < step:
        raise ValueError(
            f"history is too small: step {step} needs a capacity of at least {step}, got shape {a.shape}; enlarge it"
        )
    if not _is_table(a):
        raise ValueError("history must be C-contiguous, aligned and in native byte order")
    check_distinct({**outputs, "history": history})


def step_number(step: Any, least: int = 1) -> int:
    t = _validate.integer(step, "step")
    if t < least:
        raise ValueError(f"step must be at least {least} (the number of this step), got {t}")
    return t


def decay_factor(weight_decay_mode: str, lr: float, weight_decay: float) -> float:
    """What a decoupled mode multiplies param by."""
    if weight_decay_mode == "l2":
        return 1.0
    if not lr * weight_decay < 1:
        raise ValueError(
            f"lr * weight_decay must be < 1 with weight_decay_mode={weight_decay_mode!r}, got {lr!r} * {weight_decay!r}"
        )
    return 1 - lr * weight_decay


def _mix(z: int) -> int:
    """The finaliser of splitmix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def rounding_keys(seed: Any, step: int, count: int) -> tuple[int, ...] | None:
    """For each array of a step its own key, all different from one step to the next."""
    if seed is None:
        return None
    key = _mix((_mix((_validate.integer(seed, "seed") + _GOLDEN) & _MASK64) + step * _GOLDEN) & _MASK64)
    return tuple(_mix((key + (a + 1) * _GOLDEN) & _MASK64) for a in range(count))


def write_history(history: Raw, modes: Modes, weight_decay: float) -> None:
    """The row of this step: lr, the logarithm of all decay so far, the largest lr so far. A device is not waited for."""
    before, row = history.array[max(modes.step - 2, 0)], history.array[modes.step - 1]
    decay = math.log1p(-modes.lr * weight_decay) if modes.lazy else 0.0
    row[0] = modes.lr
    if modes.step == 1:
        row[1], row[2] = decay, modes.lr
    else:
        row[1] = before[1] + decay
        row[2] = namespace(row).maximum(before[2], modes.lr)
    history.adapter.wrote(history.source)


def update_rows(
    outputs: Raws,
    dims: tuple[int, ...],
    idx: Array,
    values: Array,
    check: bool,
    call: Callable[[dict[str, Array], Index, Array, Index | None, bool], bool],
) -> None:
    """Let ``call(tables, rows, gradient, row_numbers, check)`` update the rows that idx names; IndexError for one out of range.

    ``row_numbers`` is None unless the tables hold only the touched rows, as copies; ``check`` whether the backend is to look at
    the range. A device is waited for by whoever looks, and where there are such copies, for their number.
    """
    arrays = [out.array for out in outputs.values()]
    as_they_are = all(map(_is_table, arrays))
    if check and not (len(dims) == 1 and as_they_are and values.size):
        _validate.check_index_range(idx, dims)
        check = False
    rows = _flat_rows(idx, dims)
    gradient = _validate.native(values).reshape(rows.size, math.prod(values.shape[1:]))
    xp = namespace(rows)
    for a in arrays if xp is np else map(_validate.addresses, arrays):
        if np.may_share_memory(_validate.addresses(gradient), a):
            gradient = gradient.copy()
        if a.dtype.kind == "i" and np.may_share_memory(_validate.addresses(rows), a):
            rows = rows.copy()
    if not gradient.size:
        return
    touched = None
    if as_they_are:
        tables = [_table(a, dims) for a in arrays]
    else:
        touched, places = xp.unique(rows, return_inverse=True)  # on a device: waits
        rows = places.astype(np.int64, copy=False)
        where = tuple(_validate.unravel(touched, dims)) if dims else None  # without sparse dimensions: one row
        copies = [xp.array(a[where], a.dtype.newbyteorder("="), order="C") for a in arrays]
        tables = [_table(copy, (touched.size,)) for copy in copies]
    if not call(dict(zip(outputs, tables, strict=True)), rows, gradient, touched, check):
        _validate.check_index_range(idx, dims)
        raise RuntimeError("the backend reports an index out of range, but every index lies in its dimension")
    if touched is not None:
        for a, copy in zip(arrays, copies, strict=True):
            a[where] = copy
    for out in outputs.values():
        out.adapter.wrote(out.source)


def update_all(outputs: Raws, dims: tuple[int, ...], call: Callable[[dict[str, Array]], None]) -> None:
    """Let ``call(tables)`` update all rows; arrays that are no tables go in as copies."""
    copies = {name: out.array if _is_table(out.array) else _validate.native(out.array) for name, out in outputs.items()}
    call({name: _table(a, dims) for name, a in copies.items()})
    for name, out in outputs.items():
        if copies[name] is not out.array:
            out.array[...] = copies[name]
        out.adapter.wrote(out.source)


def with_arrays(modes: Modes, tables: dict[str, Array], history: Raw | None, row_numbers: Index | None = None) -> Modes:
    """The modes with their arrays as the backend takes them."""
    return modes._replace(
        max_exp_avg_sq=tables.get("max_exp_avg_sq"),
        row_step=tables["row_step"].reshape(-1) if "row_step" in tables else None,
        last_step=tables["last_step"].reshape(-1) if "last_step" in tables else None,
        history=None if history is None else history.array,
        row_numbers=row_numbers,
    )


def _flat_rows(idx: Array, dims: tuple[int, ...]) -> Index:
    """Row numbers in the table that param is when its sparse dimensions are flattened."""
    rows: Index = namespace(idx).zeros(idx.shape[1], np.int64)
    for axis, dim in enumerate(dims):
        if len(dims) == 1:
            return _validate.native(idx[axis], np.dtype(np.int64))
        rows = rows * dim + idx[axis].astype(np.int64)
    return rows


def _is_table(a: Array) -> bool:
    """Whether a backend can update a in its own memory."""
    flags = a.flags
    return bool(flags.c_contiguous and (not isinstance(a, np.ndarray) or (flags.aligned and a.dtype.isnative)))


def _table(a: Array, dims: tuple[int, ...]) -> Array:
    """The C-contiguous a as (rows, width); width 1 where a holds one number a row."""
    return a if a.ndim == 2 and len(dims) == 1 else a.reshape(math.prod(dims), math.prod(a.shape[len(dims) :]))
