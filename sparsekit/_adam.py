"""Adam steps on arrays: checks and scalars here, the arithmetic in the backend."""

import math
from typing import Any

from sparsekit import _optim, _validate
from sparsekit._dlpack import on_device_of
from sparsekit._protocol import Array, Index, Modes
from sparsekit._registry import select

_BIAS_CORRECTIONS = ("global", "row")
_PLAIN = ("l2", "masked", "global", False, "nearest", None)


@on_device_of("param")
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
    weight_decay_mode: str = "l2",
    moments: str = "masked",
    bias_correction: str = "global",
    max_exp_avg_sq: Any = None,
    row_step: Any = None,
    last_step: Any = None,
    history: Any = None,
    rowwise: bool = False,
    rounding: str = "nearest",
    seed: int | None = None,
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
        First and second moment, updated. float64 for a float64 param; else float32, or both float64, float16 or bfloat16.
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
        Strength of the weight decay, >= 0.
    weight_decay_mode : str
        "l2": a penalty on the touched rows, ``g += weight_decay * param``, as in torch.optim.Adam. "decoupled": the touched rows
        are multiplied by ``1 - lr * weight_decay``, as in AdamW. "decoupled_lazy": all rows are, each when it is next touched
        or flushed, by the factors of all the steps that it sat out. The decoupled ones need ``lr * weight_decay < 1``.
    moments : str
        What a row's moments do in steps that do not touch it. "masked": nothing, as in torch.optim.SparseAdam. "decayed": they
        decay, as if the gradient had been 0. "exact": and param moves, as in dense torch.optim.Adam fed zero gradients (dense
        AdamW with "decoupled_lazy"), whose denominator is ``sqrt(exp_avg_sq) + eps * sqrt(1 - beta2**step)`` in the terms of
        SparseAdam. Both happen when the row is next touched or flushed. "l2" decay acts on touched rows only, here too.
    bias_correction : str
        By the number of the step, "global", or of the row's own updates, "row", so that rows that come late move by lr at first.
    max_exp_avg_sq : array like exp_avg_sq, optional
        The largest second moments so far, updated and used in its place: AMSGrad.
    row_step : int64 array, (*sparse_shape,)
        With ``bias_correction="row"``: how many updates a row's moments went through, updated; with "decayed" and "exact"
        moments steps that it sat out count from its first update on. 0 at first.
    last_step : int64 array, (*sparse_shape,)
        With "decoupled_lazy", "decayed" or "exact": as of which step a row is up to date, updated. 0 at first.
    history : float64 array, (capacity, 3)
        With "decoupled_lazy" or "exact": C-contiguous, capacity >= step. Row ``step - 1`` is written, also for a gradient without
        entries: lr, the sum of ``log1p(-lr * weight_decay)`` over all steps so far, the largest lr so far. Rows of earlier
        steps must be as they were written.
    rowwise : bool
        One second moment for each row, fed with the mean of ``g**2`` over it: exp_avg_sq (and max_exp_avg_sq) have sparse_shape.
    rounding : str
        How results are rounded to 16-bit arrays: "nearest" or "stochastic", up or down with the chance that makes it unbiased.
    seed : int, optional
        With "stochastic": what is drawn depends on it, the step, the array and the position in it, and on nothing else.
    maximize : bool
        Ascend instead of descend.
    check : bool
        Check that every index lies in its dimension; on a CUDA device the call waits for the answer. Without, an index out of
        range is an error or writes to another row, never elsewhere, and nothing is waited for.
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
        Shapes that do not fit; a hyper-parameter out of range; an unknown mode, an array that the modes need missing, or given
        though they do not; a history too small; an array to be updated is read-only, overlaps itself (zero strides) or another.
    TypeError
        Wrong dtypes; arrays of several libraries.
        In every case nothing has been written.

    Notes
    -----
    Cost: reads the gradient once, reads and writes the touched rows of the arrays once; extra memory O(nnz + width) (for
    arrays that are not C-contiguous: a copy of the touched rows). "exact" replays the steps that a row sat out until what is left
    is below param's resolution (about 140 for float32 and the default betas; all of them where ``betas[0]**2 >= betas[1]``).
    Determinism: same bits from run to run, for any number of threads and on every backend.
    Source: Kingma and Ba 2015, with the masked moments of torch.optim.SparseAdam, which it equals by default; Loshchilov and
    Hutter 2019 (decoupled), Reddi et al. 2018 (AMSGrad), FBGEMM's lazy decay and PARTIAL_ROWWISE_ADAM.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> param, m, v = np.zeros(5), np.zeros(5), np.zeros(5)
    >>> sparsekit.sparse_adam_step(param, m, v, np.array([1, 4]), np.array([5.0, 9.0]), step=1, lr=0.1)
    >>> param.round(4)
    array([ 0. , -0.1,  0. ,  0. , -0.1])
    """
    asked = (weight_decay_mode, moments, bias_correction, rowwise, rounding, seed) != _PLAIN
    arrays = {"param": param, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "values": values, "indices": indices}
    if asked or not (max_exp_avg_sq is row_step is last_step is history is None):
        asked = True
        _check_modes(weight_decay_mode, moments, bias_correction, row_step, last_step, history, rounding, seed)
        arrays |= {"max_exp_avg_sq": max_exp_avg_sq, "row_step": row_step, "last_step": last_step, "history": history}
    outputs = _optim.import_arrays(arrays)
    gradient, idx = outputs.pop("values"), _validate.as_indices(outputs.pop("indices"))
    past = outputs.pop("history", None)
    _optim.check_param(outputs["param"], gradient)
    dims = _optim.check_gradient(outputs["param"].array.shape, idx, gradient.array)
    _optim.check_states(outputs, _STATES)
    _optim.check_outputs(outputs, dims, _ROW_SHAPED[bool(rowwise)])
    t, (beta1, beta2) = _optim.step_number(step), _betas(betas)
    rate, decay = _validate.scalar(lr, "lr", 0.0), _validate.scalar(weight_decay, "weight_decay", 0.0)
    numbers: dict[str, Any] = {
        "dtype": gradient.dtype,
        "step_size": rate * math.sqrt(1 - beta2**t) / (1 - beta1**t),
        "beta1": beta1,
        "beta2": beta2,
        "eps": _validate.scalar(eps, "eps", 0.0),
        "weight_decay": decay if weight_decay_mode == "l2" else 0.0,
        "maximize": bool(maximize),
    }
    modes = None
    if asked or outputs["exp_avg"].dtype != _optim.default_state(outputs["param"]):
        modes = Modes(
            step=t,
            lr=rate,
            decay=_optim.decay_factor(weight_decay_mode, rate, decay),
            lazy=weight_decay_mode == "decoupled_lazy",
            moments=moments,
            state_dtype=outputs["exp_avg"].dtype,
            rowwise=bool(rowwise),
            keys=_optim.rounding_keys(seed, t, 4),
        )
        if past is not None:
            _optim.check_history(past, t, outputs)
    served_by = select(backend, outputs["param"].device)

    def call(tables: dict[str, Array], rows: Index, values: Array, row_numbers: Index | None, check: bool) -> bool:
        inner = None if modes is None else _optim.with_arrays(modes, tables, past, row_numbers)
        return served_by.sparse_adam_step(
            tables["param"], tables["exp_avg"], tables["exp_avg_sq"], rows, values, **numbers, check=check, modes=inner
        )

    _optim.update_rows(outputs, dims, idx, gradient.array, check, call)
    if past is not None and modes is not None:
        _optim.write_history(past, modes, decay)


@on_device_of("param")
def sparse_adam_flush(
    param: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    *,
    step: int,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay_mode: str = "l2",
    moments: str = "masked",
    bias_correction: str = "global",
    max_exp_avg_sq: Any = None,
    row_step: Any = None,
    last_step: Any = None,
    history: Any = None,
    rowwise: bool = False,
    rounding: str = "nearest",
    seed: int | None = None,
    backend: str | None = None,
) -> None:
    """Bring every row up to date as of the end of a step, in place: what sparse_adam_step put off for rows not touched.

    Before param is evaluated or saved, or a mode is changed. A flush in mid-run changes nothing later beyond rounding.

    Parameters
    ----------
    param, exp_avg, exp_avg_sq : array
        As for ``sparse_adam_step``; updated.
    step : int
        The number of the last step made, from 0.
    betas, eps, weight_decay_mode, moments, bias_correction : optional
        As in the steps. With "masked" moments and any other decay than "decoupled_lazy" there is nothing to do.
    max_exp_avg_sq, row_step, last_step, history : array, optional
        As in the steps. All but the history and max_exp_avg_sq are updated; ``last_step`` becomes step where it was less.
    rowwise, rounding, seed : optional
        As in the steps.
    backend : str, optional
        See ``use_backend``.

    Returns
    -------
    None

    Raises
    ------
    ValueError, TypeError
        As sparse_adam_step. Nothing has been written then.

    Notes
    -----
    Cost: O(table); rows are shared out among the threads. Arrays that are not C-contiguous are copied.
    Determinism: same bits from run to run, for any number of threads and on every backend; a second flush changes nothing.
    Source: as ``sparse_adam_step``.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> param, m, v = np.ones(3), np.zeros(3), np.zeros(3)
    >>> lazy = {"weight_decay_mode": "decoupled_lazy", "last_step": np.zeros(3, int), "history": np.zeros((10, 3))}
    >>> for step in (1, 2):
    ...     sparsekit.sparse_adam_step(
    ...         param, m, v, np.array([1]), np.zeros(1), step=step, lr=0.1, weight_decay=0.5, **lazy)
    >>> param
    array([1.    , 0.9025, 1.    ])
    >>> sparsekit.sparse_adam_flush(param, m, v, step=2, **lazy)
    >>> param
    array([0.9025, 0.9025, 0.9025])
    """
    _check_modes(weight_decay_mode, moments, bias_correction, row_step, last_step, history, rounding, seed)
    if last_step is None:
        return
    arrays = {"param": param, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    arrays |= {"max_exp_avg_sq": max_exp_avg_sq, "row_step": row_step, "last_step": last_step, "history": history}
    outputs = _optim.import_arrays(arrays)
    past = outputs.pop("history", None)
    _optim.check_param(outputs["param"], None)
    dims = _optim.dims_of_last_step(outputs)
    _optim.check_states(outputs, _STATES)
    _optim.check_outputs(outputs, dims, _ROW_SHAPED[bool(rowwise)])
    t, (beta1, beta2) = _optim.step_number(step, 0), _betas(betas)
    epsilon = _validate.scalar(eps, "eps", 0.0)
    modes = Modes(
        step=t,
        lr=0.0,
        decay=1.0,
        lazy=weight_decay_mode == "decoupled_lazy",
        moments=moments,
        state_dtype=outputs["exp_avg"].dtype,
        rowwise=bool(rowwise),
        keys=_optim.rounding_keys(seed, t, 4),
    )
    if past is not None:
        _optim.check_history(past, t, outputs)
    served_by = select(backend, outputs["param"].device)

    def call(tables: dict[str, Array]) -> None:
        served_by.sparse_adam_flush(
            tables["param"],
            tables["exp_avg"],
            tables["exp_avg_sq"],
            dtype=outputs["param"].dtype,
            beta1=beta1,
            beta2=beta2,
            eps=epsilon,
            modes=_optim.with_arrays(modes, tables, past),
        )

    _optim.update_all(outputs, dims, call)


_STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
# Which arrays hold one number a row: without and with rowwise.
_ROW_SHAPED = (("last_step", "row_step"), ("last_step", "row_step", "exp_avg_sq", "max_exp_avg_sq"))


def _check_modes(
    weight_decay_mode: Any,
    moments: Any,
    bias_correction: Any,
    row_step: Any,
    last_step: Any,
    history: Any,
    rounding: Any,
    seed: Any,
) -> None:
    _optim.check_modes(weight_decay_mode, moments, last_step, history, rounding, seed)
    _optim.check_choice(bias_correction, "bias_correction", _BIAS_CORRECTIONS)
    _optim.check_given(row_step, "row_step", bias_correction == "row", 'with bias_correction="row"')


def _betas(betas: Any) -> tuple[float, float]:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise TypeError(f"betas must be a pair of floats, got {betas!r}") from None
    return _validate.scalar(beta1, "betas[0]", 0.0, 1.0), _validate.scalar(beta2, "betas[1]", 0.0, 1.0)
