"""Optimizer steps on arrays: checks and scalars here, the arithmetic in the backend."""

import math
from typing import Any

import numpy as np

from sparsekit import _validate
from sparsekit._dlpack import Raw, import_array, same_library
from sparsekit._protocol import Array, Index
from sparsekit._registry import select


def sparse_adam_step(
    param: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    indices: Any,
    values: Any,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
    check: bool = True,
    backend: str | None = None,
) -> None:
    """One Adam step on the rows that a sparse gradient names, in place; all other rows stay bit-identical.

    Parameters
    ----------
    param : array, (*sparse_shape, *dense_shape)
        float16, bfloat16, float32 or float64; updated. May be a ``numpy.memmap``, and need not be contiguous.
    exp_avg, exp_avg_sq : array, same shape
        First and second moment, updated. float64 for a float64 param, else float32.
    indices : integer array, (sparse_ndim, nnz) or (nnz,)
        Coordinates of the gradient's rows; duplicates are summed first, then update once.
    values : array, (nnz, *dense_shape)
        The gradient, of param's dtype.
    step : int
        The number of this step, from 1, for the bias correction.
    lr : float
        Learning rate, >= 0 (a 1-element array or tensor will do).
    betas : (float, float)
        Decay of the moments, each in [0, 1).
    eps : float
        Added to the root of the second moment, >= 0.
    weight_decay : float
        L2 penalty on the touched rows: ``g += weight_decay * param``, as in torch.optim.Adam.
    maximize : bool
        Ascend instead of descend.
    check : bool
        Check that every index lies in its dimension. Without, an index out of range is an error or writes to another row.
    backend : str, optional
        See ``use_backend``.

    Returns
    -------
    None

    Raises
    ------
    IndexError
        An index out of range; names the dimension, the position and the value.
    ValueError
        Shapes that do not fit; a hyper-parameter out of range; an array to be updated is read-only, overlaps itself (zero
        strides) or another one.
    TypeError
        Wrong dtypes; arrays of several libraries.
        In every case nothing has been written.

    Notes
    -----
    Cost: reads the gradient once, reads and writes the touched rows of the three arrays once; extra memory O(nnz + width) (for
    arrays that are not C-contiguous: a copy of the touched rows).
    Determinism: same bits from run to run, for any number of threads and on every backend.
    Source: Kingma and Ba 2015, with the masked moments of torch.optim.SparseAdam, which it equals by default.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> param, m, v = np.zeros(5), np.zeros(5), np.zeros(5)
    >>> sparsekit.sparse_adam_step(param, m, v, np.array([1, 4]), np.array([5.0, 9.0]), step=1, lr=0.1)
    >>> param.round(4)
    array([ 0. , -0.1,  0. ,  0. , -0.1])
    """
    raws = [
        import_array(x, name)
        for x, name in (
            (param, "param"),
            (exp_avg, "exp_avg"),
            (exp_avg_sq, "exp_avg_sq"),
            (values, "values"),
            (indices, "indices"),
        )
    ]
    same_library(raws, ("param", "exp_avg", "exp_avg_sq", "values", "indices"))
    outputs, values_raw = raws[:3], raws[3]
    _check_arrays(outputs, values_raw)
    idx = _validate.as_indices(raws[4])
    dims = _check_layout(outputs[0].array.shape, idx, values_raw.array)
    step_size, beta1, beta2, floats = _scalars(step, lr, betas, eps, weight_decay)
    served_by = select(backend)
    as_they_are = all(_is_table(out.array) for out in outputs)
    if check and not (len(dims) == 1 and as_they_are and values_raw.array.size):  # else the backend looks, in a pass of its own
        _validate.check_index_range(idx, dims)

    rows = _flat_rows(idx, dims)
    gradient = _validate.native(values_raw.array).reshape(rows.size, math.prod(values_raw.array.shape[1:]))
    if any(np.may_share_memory(gradient, out.array) for out in outputs):
        gradient = gradient.copy()
    if not gradient.size:
        return
    tables, write_back = _as_tables([out.array for out in outputs], len(dims), rows)
    if write_back is not None:
        touched, rows = write_back
    done = served_by.sparse_adam_step(
        tables[0],
        tables[1],
        tables[2],
        rows,
        gradient,
        dtype=values_raw.dtype,
        step_size=step_size,
        beta1=beta1,
        beta2=beta2,
        maximize=bool(maximize),
        **floats,
    )
    if not done:
        _validate.check_index_range(idx, dims)
        raise RuntimeError("the backend reports an index out of range, but every index lies in its dimension")
    if write_back is not None:
        where = np.unravel_index(touched, dims) if dims else ...
        for out, table in zip(outputs, tables, strict=True):
            out.array[where] = table.reshape(out.array[where].shape)
    for out in outputs:
        out.adapter.wrote(out.source)


def _check_arrays(outputs: list[Raw], values: Raw) -> None:
    param, names = outputs[0], ("param", "exp_avg", "exp_avg_sq")
    if param.dtype not in _validate.REAL_FLOATS:
        raise TypeError(f"param must have a real float dtype ({', '.join(_validate.REAL_FLOATS)}), got {param.dtype}")
    if values.dtype != param.dtype:
        raise TypeError(f"values must have param's dtype {param.dtype}, got {values.dtype}")
    state = "float64" if param.dtype == "float64" else "float32"
    for out, name in zip(outputs, names, strict=True):
        _validate.check_output(out, name)
        if out is not param and out.dtype != state:
            raise TypeError(f"{name} must have dtype {state} for a {param.dtype} param, got {out.dtype}")
        if out.array.shape != param.array.shape:
            raise ValueError(f"{name} must have param's shape {param.array.shape}, got {out.array.shape}")
    for i, j in ((0, 1), (0, 2), (1, 2)):
        # Bounds first: they decide nearly always. Exact for strided views that interleave.
        if np.may_share_memory(outputs[i].array, outputs[j].array) and np.shares_memory(outputs[i].array, outputs[j].array):
            raise ValueError(f"{names[i]} and {names[j]} must not share memory; each is updated in place")


def _check_layout(shape: tuple[int, ...], idx: Array, values: Array) -> tuple[int, ...]:
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


def _scalars(step: Any, lr: Any, betas: Any, eps: Any, weight_decay: Any) -> tuple[float, float, float, dict[str, float]]:
    t = _validate.integer(step, "step")
    if t < 1:
        raise ValueError(f"step must be at least 1 (the number of this step), got {t}")
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise TypeError(f"betas must be a pair of floats, got {betas!r}") from None
    beta1, beta2 = _validate.scalar(beta1, "betas[0]", 0.0, 1.0), _validate.scalar(beta2, "betas[1]", 0.0, 1.0)
    rate = _validate.scalar(lr, "lr", 0.0)
    step_size = rate * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    rest = {"eps": _validate.scalar(eps, "eps", 0.0), "weight_decay": _validate.scalar(weight_decay, "weight_decay", 0.0)}
    return step_size, beta1, beta2, rest


def _flat_rows(idx: Array, dims: tuple[int, ...]) -> Index:
    """Row numbers in the table that param is when its sparse dimensions are flattened."""
    rows = np.zeros(idx.shape[1], np.int64)
    for axis, dim in enumerate(dims):
        if len(dims) == 1:
            return _validate.native(idx[axis], np.dtype(np.int64))
        rows = rows * dim + idx[axis].astype(np.int64)
    return rows


def _is_table(a: Array) -> bool:
    """Whether a backend can update a in its own memory."""
    return bool(a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative)


def _as_tables(arrays: list[Array], sparse_ndim: int, rows: Index) -> tuple[list[Array], tuple[Index, Index] | None]:
    """The arrays as C-contiguous (n, width) views; where one has no such view, the touched rows of all, as copies.

    In the second case also (the touched rows, each gradient row's place among them), for writing back.
    """
    shape = arrays[0].shape
    n, width = math.prod(shape[:sparse_ndim]), math.prod(shape[sparse_ndim:])
    if all(map(_is_table, arrays)):
        return [a.reshape(n, width) for a in arrays], None
    touched, places = np.unique(rows, return_inverse=True)
    where = np.unravel_index(touched, shape[:sparse_ndim]) if sparse_ndim else ...
    copies = [np.array(a[where], a.dtype.newbyteorder("="), order="C").reshape(touched.size, width) for a in arrays]
    return copies, (touched, places.astype(np.int64, copy=False))
