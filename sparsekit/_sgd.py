"""SGD steps on arrays: checks and scalars here, the arithmetic in the backend."""

from typing import Any

from sparsekit import _optim, _validate
from sparsekit._dlpack import on_device_of
from sparsekit._protocol import Array, Index, Modes
from sparsekit._registry import select

_ROW_SHAPED = ("last_step",)


@on_device_of("param")
def sparse_sgd_step(
    param: Any,
    indices: Any,
    values: Any,
    *,
    step: int = 1,
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    weight_decay_mode: str = "l2",
    moments: str = "masked",
    momentum_buffer: Any = None,
    last_step: Any = None,
    history: Any = None,
    rounding: str = "nearest",
    seed: int | None = None,
    maximize: bool = False,
    check: bool = True,
    backend: str | None = None,
) -> None:
    """One step of stochastic gradient descent on the rows that a sparse gradient names; all other rows stay bit-identical.

    Parameters
    ----------
    param : array, (*sparse_shape, *dense_shape)
        float16, bfloat16, float32 or float64; updated.
    indices : integer array, (sparse_ndim, nnz) or (nnz,)
        Coordinates of the gradient's rows; duplicates are summed first, then update once.
    values : array, (nnz, *dense_shape)
        The gradient, of param's dtype.
    step : int
        The number of this step, from 1.
    lr : float
        Learning rate, >= 0 (a 1-element array or tensor will do).
    momentum : float
        Decay of the momentum_buffer, in [0, 1).
    dampening : float
        The gradient enters the buffer times ``1 - dampening``, but whole in step 1, as in torch.optim.SGD.
    nesterov : bool
        Nesterov's momentum; needs momentum > 0 and dampening 0.
    weight_decay : float
        Strength of the weight decay, >= 0.
    weight_decay_mode : str
        "l2", "decoupled" or "decoupled_lazy", as for ``sparse_adam_step``.
    moments : str
        What a row's momentum_buffer does in steps that do not touch it. "masked": nothing. "decayed": it decays. "exact": and
        param moves, as in dense torch.optim.SGD fed zero gradients. Both happen when the row is next touched or flushed.
    momentum_buffer : array like param, optional
        With momentum: updated; zeros at first. float64 for a float64 param; else float32 (or float64, float16, bfloat16).
    last_step : int64 array, (*sparse_shape,)
        With "decoupled_lazy", "decayed" or "exact": as of which step a row is up to date, updated. 0 at first.
    history : float64 array, (capacity, 3)
        With "decoupled_lazy" or "exact": as for ``sparse_adam_step``.
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
    arrays that are not C-contiguous: a copy of the touched rows), and "exact" O(1) for each step that a row sat out.
    Determinism: same bits from run to run, for any number of threads and on every backend.
    Source: Polyak 1964, Nesterov 1983, as torch.optim.SGD has them.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> param, buffer = np.zeros(4), np.zeros(4)
    >>> for step in (1, 2):
    ...     sparsekit.sparse_sgd_step(param, np.array([1, 3]), np.array([1.0, 2.0]), step=step, lr=0.1,
    ...                               momentum=0.5, momentum_buffer=buffer)
    >>> param
    array([ 0.  , -0.25,  0.  , -0.5 ])
    """
    _optim.check_modes(weight_decay_mode, moments, last_step, history, rounding, seed)
    decay_of_buffer, damping = _check_momentum(momentum, nesterov, momentum_buffer, dampening)
    outputs = _optim.import_arrays(
        {
            "param": param,
            "momentum_buffer": momentum_buffer,
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
    _optim.check_states(outputs, ("momentum_buffer",))
    _optim.check_outputs(outputs, dims, _ROW_SHAPED)
    t = _optim.step_number(step)
    rate, decay = _validate.scalar(lr, "lr", 0.0), _validate.scalar(weight_decay, "weight_decay", 0.0)
    numbers: dict[str, Any] = {
        "dtype": gradient.dtype,
        "momentum": decay_of_buffer,
        "dampening": damping,
        "nesterov": bool(nesterov),
        "weight_decay": decay if weight_decay_mode == "l2" else 0.0,
        "maximize": bool(maximize),
    }
    modes = Modes(
        step=t,
        lr=rate,
        decay=_optim.decay_factor(weight_decay_mode, rate, decay),
        lazy=weight_decay_mode == "decoupled_lazy",
        moments=moments,
        state_dtype=_state_dtype(outputs),
        keys=_optim.rounding_keys(seed, t, 2),
    )
    if past is not None:
        _optim.check_history(past, t, outputs)
    served_by = select(backend, outputs["param"].device)

    def call(tables: dict[str, Array], rows: Index, values: Array, row_numbers: Index | None, check: bool) -> bool:
        inner = _optim.with_arrays(modes, tables, past, row_numbers)
        return served_by.sparse_sgd_step(
            tables["param"], tables.get("momentum_buffer"), rows, values, **numbers, check=check, modes=inner
        )

    _optim.update_rows(outputs, dims, idx, gradient.array, check, call)
    if past is not None:
        _optim.write_history(past, modes, decay)


@on_device_of("param")
def sparse_sgd_flush(
    param: Any,
    *,
    step: int,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay_mode: str = "l2",
    moments: str = "masked",
    momentum_buffer: Any = None,
    last_step: Any = None,
    history: Any = None,
    rounding: str = "nearest",
    seed: int | None = None,
    backend: str | None = None,
) -> None:
    """Bring every row up to date as of the end of a step, in place: what sparse_sgd_step put off for rows not touched.

    Parameters
    ----------
    param : array
        As for ``sparse_sgd_step``; updated.
    step : int
        The number of the last step made, from 0.
    momentum, nesterov, weight_decay_mode, moments : optional
        As in the steps. With "masked" moments and any other decay than "decoupled_lazy" there is nothing to do.
    momentum_buffer, last_step, history : array, optional
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
    Source: as ``sparse_sgd_step``.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> param, state = np.zeros(3), {"momentum_buffer": np.zeros(3), "last_step": np.zeros(3, int), "history": np.zeros((9, 3))}
    >>> for step, row in ((1, 0), (2, 1)):
    ...     sparsekit.sparse_sgd_step(
    ...         param, np.array([row]), np.ones(1), step=step, lr=0.1, momentum=0.5, moments="exact", **state)
    >>> sparsekit.sparse_sgd_flush(param, step=2, momentum=0.5, moments="exact", **state)
    >>> param
    array([-0.15, -0.1 ,  0.  ])
    """
    _optim.check_modes(weight_decay_mode, moments, last_step, history, rounding, seed)
    decay_of_buffer, _ = _check_momentum(momentum, nesterov, momentum_buffer, 0.0)
    if last_step is None:
        return
    outputs = _optim.import_arrays(
        {"param": param, "momentum_buffer": momentum_buffer, "last_step": last_step, "history": history}
    )
    past = outputs.pop("history", None)
    _optim.check_param(outputs["param"], None)
    dims = _optim.dims_of_last_step(outputs)
    _optim.check_states(outputs, ("momentum_buffer",))
    _optim.check_outputs(outputs, dims, _ROW_SHAPED)
    t = _optim.step_number(step, 0)
    if past is not None:
        _optim.check_history(past, t, outputs)
    modes = Modes(
        step=t,
        lr=0.0,
        decay=1.0,
        lazy=weight_decay_mode == "decoupled_lazy",
        moments=moments,
        state_dtype=_state_dtype(outputs),
        keys=_optim.rounding_keys(seed, t, 2),
    )
    served_by = select(backend, outputs["param"].device)

    def call(tables: dict[str, Array]) -> None:
        served_by.sparse_sgd_flush(
            tables["param"],
            tables.get("momentum_buffer"),
            dtype=outputs["param"].dtype,
            momentum=decay_of_buffer,
            nesterov=bool(nesterov),
            modes=_optim.with_arrays(modes, tables, past),
        )

    _optim.update_all(outputs, dims, call)


def _check_momentum(momentum: Any, nesterov: Any, momentum_buffer: Any, dampening: Any) -> tuple[float, float]:
    decay, damping = _validate.scalar(momentum, "momentum", 0.0, 1.0), _validate.scalar(dampening, "dampening", 0.0)
    if nesterov and (decay == 0 or damping != 0):
        raise ValueError(f"nesterov needs momentum > 0 and dampening 0, got momentum {decay!r} and dampening {damping!r}")
    _optim.check_given(momentum_buffer, "momentum_buffer", decay != 0, "with momentum > 0")
    return decay, damping


def _state_dtype(outputs: _optim.Raws) -> str:
    return outputs["momentum_buffer"].dtype if "momentum_buffer" in outputs else _optim.default_state(outputs["param"])
