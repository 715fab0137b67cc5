"""Adagrad steps on arrays: checks and scalars here, the arithmetic in the backend."""

from typing import Any

from sparsekit import _optim, _validate
from sparsekit._dlpack import on_device_of
from sparsekit._protocol import Array, Index, Modes
from sparsekit._registry import select

# Which arrays hold one number a row: without and with rowwise.
_ROW_SHAPED = (("last_step",), ("last_step", "state_sum"))


@on_device_of("param")
def sparse_adagrad_step(
    param: Any,
    state_sum: Any,
    indices: Any,
    values: Any,
    *,
    step: int = 1,
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    weight_decay_mode: str = "l2",
    last_step: Any = None,
    history: Any = None,
    rowwise: bool = False,
    rounding: str = "nearest",
    seed: int | None = None,
    maximize: bool = False,
    check: bool = True,
    backend: str | None = None,
) -> None:
    """One Adagrad step on the rows that a sparse gradient names, in place; all other rows stay bit-identical.

    Parameters
    ----------
    param : array, (*sparse_shape, *dense_shape)
        float16, bfloat16, float32 or float64; updated.
    state_sum : array, same shape
        Sum of the squared gradients, updated. float64 for a float64 param; else float32 (or float64, float16, bfloat16).
    indices : integer array, (sparse_ndim, nnz) or (nnz,)
        Coordinates of the gradient's rows; duplicates are summed first, then update once.
    values : array, (nnz, *dense_shape)
        The gradient, of param's dtype.
    step : int
        The number of this step, from 1.
    lr : float
        Learning rate, >= 0 (a 1-element array or tensor will do).
    lr_decay : float
        The rate of step t is ``lr / (1 + (t - 1) * lr_decay)``, >= 0.
    eps : float
        Added to the root of the sum, >= 0.
    weight_decay : float
        Strength of the weight decay, >= 0.
    weight_decay_mode : str
        "l2", "decoupled" or "decoupled_lazy", as for ``sparse_adam_step``; the decoupled ones
        decay by the rate of the step.
    last_step : int64 array, (*sparse_shape,)
        With "decoupled_lazy": as of which step a row is up to date, updated. 0 at first.
    history : float64 array, (capacity, 3)
        With "decoupled_lazy": as for ``sparse_adam_step``, with the rate of each step.
    rowwise : bool
        One sum for each row, fed with the mean of ``g**2`` over it: state_sum has sparse_shape.
    rounding, seed : str, int
        As for ``sparse_adam_step``.
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
    IndexError, ValueError, TypeError
        As ``sparse_adam_step``. In every case nothing has been written.

    Notes
    -----
    Cost: reads the gradient once, reads and writes the touched rows of the arrays once; extra memory O(nnz + width) (for
    arrays that are not C-contiguous: a copy of the touched rows). A zero gradient changes nothing in Adagrad, so rows that sit
    out steps have nothing but decay to catch up.
    Determinism: same bits from run to run, for any number of threads and on every backend.
    Source: Duchi et al. 2011, as torch.optim.Adagrad has it, which it equals by default; FBGEMM's rowwise Adagrad.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> param, state_sum = np.zeros(4), np.zeros(4)
    >>> sparsekit.sparse_adagrad_step(param, state_sum, np.array([1, 3, 1]), np.array([1.0, -2.0, 3.0]), lr=0.1)
    >>> param.round(4), state_sum
    (array([ 0. , -0.1,  0. ,  0.1]), array([ 0., 16.,  0.,  4.]))
    """
    _optim.check_modes(weight_decay_mode, "masked", last_step, history, rounding, seed)
    outputs = _optim.import_arrays(
        {
            "param": param,
            "state_sum": state_sum,
            "last_step": last_step,
            "history": history,
            "values": values,
            "indices": indices,
        }
    )
    gradient, idx = outputs.pop("values"), _validate.as_indices(outputs.pop("indices"))
    past = outputs.pop("history", None)
    _optim.check_param(outputs["param"], gradient)
    dims = _optim.check_gradient(outputs["param"].array.shape, idx, gradient.array)
    _optim.check_states(outputs, ("state_sum",))
    _optim.check_outputs(outputs, dims, _ROW_SHAPED[bool(rowwise)])
    t = _optim.step_number(step)
    rate = _validate.scalar(lr, "lr", 0.0) / (1 + (t - 1) * _validate.scalar(lr_decay, "lr_decay", 0.0))
    decay = _validate.scalar(weight_decay, "weight_decay", 0.0)
    numbers: dict[str, Any] = {
        "dtype": gradient.dtype,
        "eps": _validate.scalar(eps, "eps", 0.0),
        "weight_decay": decay if weight_decay_mode == "l2" else 0.0,
        "maximize": bool(maximize),
    }
    modes = Modes(
        step=t,
        lr=rate,
        decay=_optim.decay_factor(weight_decay_mode, rate, decay),
        lazy=weight_decay_mode == "decoupled_lazy",
        moments="masked",
        state_dtype=outputs["state_sum"].dtype,
        rowwise=bool(rowwise),
        keys=_optim.rounding_keys(seed, t, 2),
    )
    if past is not None:
        _optim.check_history(past, t, outputs)
    served_by = select(backend, outputs["param"].device)

    def call(tables: dict[str, Array], rows: Index, values: Array, row_numbers: Index | None, check: bool) -> bool:
        inner = _optim.with_arrays(modes, tables, past, row_numbers)
        return served_by.sparse_adagrad_step(
            tables["param"], tables["state_sum"], rows, values, **numbers, check=check, modes=inner
        )

    _optim.update_rows(outputs, dims, idx, gradient.array, check, call)
    if past is not None:
        _optim.write_history(past, modes, decay)


@on_device_of("param")
def sparse_adagrad_flush(
    param: Any,
    *,
    step: int,
    last_step: Any,
    history: Any,
    rounding: str = "nearest",
    seed: int | None = None,
    backend: str | None = None,
) -> None:
    """Bring every row up to date as of the end of a step, in place: the decay that "decoupled_lazy" put off.

    Parameters
    ----------
    param : array
        As for ``sparse_adagrad_step``; updated.
    step : int
        The number of the last step made, from 0.
    last_step, history : array
        As in the steps; ``last_step`` becomes step where it was less.
    rounding, seed : str, int
        As in the steps.
    backend : str, optional
        See ``use_backend``.

    Returns
    -------
    None

    Raises
    ------
    ValueError, TypeError
        As the step. Nothing has been written then.

    Notes
    -----
    Cost: O(table); rows are shared out among the threads. Arrays that are not C-contiguous are copied.
    Determinism: same bits from run to run, for any number of threads and on every backend; a second flush changes nothing.
    Source: as ``sparse_adagrad_step``.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> param, state_sum = np.ones(3), np.zeros(3)
    >>> lazy = {"last_step": np.zeros(3, int), "history": np.zeros((10, 3))}
    >>> sparsekit.sparse_adagrad_step(param, state_sum, np.array([1]), np.zeros(1), lr=0.1, weight_decay=0.5,
    ...                               weight_decay_mode="decoupled_lazy", **lazy)
    >>> sparsekit.sparse_adagrad_flush(param, step=1, **lazy)
    >>> param
    array([0.95, 0.95, 0.95])
    """
    _optim.check_modes("decoupled_lazy", "masked", last_step, history, rounding, seed)
    outputs = _optim.import_arrays({"param": param, "last_step": last_step, "history": history})
    past = outputs.pop("history")
    _optim.check_param(outputs["param"], None)
    dims = _optim.dims_of_last_step(outputs)
    _optim.check_outputs(outputs, dims, ("last_step",))
    t = _optim.step_number(step, 0)
    _optim.check_history(past, t, outputs)
    modes = Modes(
        step=t,
        lr=0.0,
        decay=1.0,
        lazy=True,
        moments="masked",
        state_dtype=_optim.default_state(outputs["param"]),
        keys=_optim.rounding_keys(seed, t, 1),
    )
    served_by = select(backend, outputs["param"].device)

    def call(tables: dict[str, Array]) -> None:
        inner = _optim.with_arrays(modes, tables, past)
        served_by.sparse_adagrad_flush(tables["param"], dtype=outputs["param"].dtype, modes=inner)

    _optim.update_all(outputs, dims, call)
