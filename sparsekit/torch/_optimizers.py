"""Optimizers for parameters with sparse gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

import sparsekit
from sparsekit.torch._optimizer_base import Job, SparseOptimizer, check_choice, check_common, check_range


class SparseAdam(SparseOptimizer):
    """Adam for sparse gradients, as ``torch.optim.SparseAdam``: only the rows that a gradient names are updated.

    Parameters
    ----------
    params : iterable of tensors, of (name, tensor) pairs, or of dicts
        Dense parameters of dtype float16, bfloat16, float32 or float64, on the CPU or CUDA devices, or parameter groups.
    lr : float or 1-element tensor
        Learning rate, > 0.
    betas : (float, float)
        Decay of the moments, each in [0, 1).
    eps : float
        Added to the root of the second moment, > 0.
    maximize : bool
        Ascend instead of descend.
    weight_decay : float
        >= 0.
    weight_decay_mode : str
        "l2" or "decoupled" on the rows that the gradient names, "decoupled_lazy" on all rows: what a row missed is caught up when
        it is next named, or by ``flush``.
    moments : str
        "masked" as torch's; "decayed": the moments of a row decay in the steps that do not name it; "exact": the row moves in
        them too, so that after ``flush`` all is as dense Adam would have it.
    bias_correction : str
        "global": by the number of the step; "row": by the row's own number of updates.
    amsgrad : bool
        Divide by the root of the largest second moment so far.
    rowwise : bool
        Keep one second moment a row: the mean of the squares.
    state_dtype : torch.dtype, optional
        Of the moments; None is float64 for float64 parameters, else float32.
    stochastic_rounding : bool
        Round 16-bit parameters and states up or down at random, without bias, by ``seed``.
    seed : int
        For stochastic rounding; each parameter and step draws its own numbers from it.

    Raises
    ------
    ValueError
        A hyper-parameter out of range, a sparse or complex parameter; in ``add_param_group`` too.
    RuntimeError
        In ``step``: a gradient that is dense or does not fit its parameter. Nothing has been changed then, of any parameter.
    IndexError
        In ``step``: a gradient names a row that its parameter does not have. Nothing has been changed then. Of parameters on a
        CUDA device the rows are not checked, which would mean to wait for the device: what such a row does is undefined, but no
        other memory is touched.

    Notes
    -----
    State: ``step`` (int), ``exp_avg`` and ``exp_avg_sq`` for each parameter, as torch.optim.SparseAdam has it, so each loads the
    other's ``state_dict``, and that of torch.optim.Adam; further ``max_exp_avg_sq``, ``row_step``, ``last_step`` and ``history``
    (three numbers a step) where a mode needs them. For float16 and bfloat16 parameters the states are float32, and stay so when
    a checkpoint is loaded. Parameters without a gradient are skipped. The formulas, costs, determinism and sources of the modes:
    ``sparsekit.sparse_adam_step``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> table = torch.nn.Embedding(1000, 16, sparse=True)
    >>> optimizer = sparsekit.torch.SparseAdam(table.parameters(), lr=0.01)
    >>> table(torch.tensor([3, 5, 3])).square().sum().backward()
    >>> optimizer.step()
    """

    _full = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _rowwise = ("exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
        *,
        weight_decay: float = 0.0,
        weight_decay_mode: str = "l2",
        moments: str = "masked",
        bias_correction: str = "global",
        amsgrad: bool = False,
        rowwise: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize, "weight_decay": weight_decay}
        modes = {"weight_decay_mode": weight_decay_mode, "moments": moments, "bias_correction": bias_correction}
        states = {"amsgrad": amsgrad, "rowwise": rowwise, "state_dtype": state_dtype}
        super().__init__(params, {**defaults, **modes, **states, "stochastic_rounding": stochastic_rounding, "seed": seed})

    def _check_options(self, group: dict[str, Any]) -> None:
        check_range(group["lr"], "learning rate", 0.0, open_=True)
        check_range(group["eps"], "epsilon value", 0.0, open_=True)
        if len(group["betas"]) != 2:
            raise ValueError(f"Invalid betas: expected two numbers, got {group['betas']}")
        for i, beta in enumerate(group["betas"]):
            check_range(beta, f"beta parameter at index {i}", 0.0, below=1.0)
        check_choice(group["bias_correction"], "bias_correction", ("global", "row"))
        check_common(group)

    def _new_tensors(self, p: Tensor, group: dict[str, Any], rows: torch.Size) -> dict[str, Callable[[], Tensor]]:
        shape = rows if group["rowwise"] else None
        make: dict[str, Callable[[], Tensor]] = {
            "exp_avg": lambda: self._zeros(p, group),
            "exp_avg_sq": lambda: self._zeros(p, group, shape),
        }
        state = self.state.get(p, {})
        if group["amsgrad"]:
            sq = state.get("exp_avg_sq")
            dtype = self._state_dtype(p, group)
            make["max_exp_avg_sq"] = lambda: self._zeros(p, group, shape) if sq is None else sq.to(dtype, copy=True)
        if group["bias_correction"] == "row":
            make["row_step"] = lambda: torch.full(rows, int(state.get("step", 0)), dtype=torch.int64, device=p.device)
        return make

    def _make_step(self, job: Job, step: int, options: dict[str, Any]) -> None:
        sparsekit.sparse_adam_step(
            job.p,
            job.state["exp_avg"],
            job.state["exp_avg_sq"],
            job.indices,
            job.values,
            step=step,
            lr=job.group["lr"],
            weight_decay=job.group["weight_decay"],
            maximize=job.group["maximize"],
            check=False,  # the gradient has been
            **_adam_options(job.group, job.state),
            **options,
        )

    def _make_flush(self, p: Tensor, group: dict[str, Any], state: dict[str, Any], options: dict[str, Any]) -> None:
        sparsekit.sparse_adam_flush(p, state["exp_avg"], state["exp_avg_sq"], **_adam_options(group, state), **options)


def _adam_options(group: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    names = ("betas", "eps", "weight_decay_mode", "moments", "bias_correction", "rowwise")
    arrays = {"max_exp_avg_sq": group["amsgrad"], "row_step": group["bias_correction"] == "row"}
    return {name: group[name] for name in names} | {name: state[name] for name, used in arrays.items() if used}


class SparseAdagrad(SparseOptimizer):
    """Adagrad for sparse gradients: only the rows that a gradient names are updated, as with torch.optim.Adagrad.

    Parameters
    ----------
    params : iterable of tensors, of (name, tensor) pairs, or of dicts
        Dense parameters of dtype float16, bfloat16, float32 or float64, on the CPU or CUDA devices, or parameter groups.
    lr : float or 1-element tensor
        Learning rate, >= 0.
    lr_decay : float
        Step t uses ``lr / (1 + (t - 1) * lr_decay)``.
    weight_decay : float
        >= 0. (torch.optim.Adagrad refuses it for sparse gradients.)
    initial_accumulator_value : float
        What the sums of squares begin with, >= 0.
    eps : float
        Added to the root of the sum, >= 0.
    maximize, weight_decay_mode, rowwise, state_dtype, stochastic_rounding, seed
        As for ``SparseAdam``.

    Raises
    ------
    ValueError, RuntimeError, IndexError
        As ``SparseAdam``.

    Notes
    -----
    State: ``step`` and ``sum``, as torch.optim.Adagrad has it, whose ``state_dict`` is accepted; ``last_step`` and ``history``
    for the lazy decay. Cost, determinism and source: ``sparsekit.sparse_adagrad_step``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> table = torch.nn.Embedding(1000, 16, sparse=True)
    >>> optimizer = sparsekit.torch.SparseAdagrad(table.parameters(), rowwise=True)
    >>> table(torch.tensor([3, 5, 3])).square().sum().backward()
    >>> optimizer.step()
    >>> optimizer.state[table.weight]["sum"].shape
    torch.Size([1000])
    """

    _full = ("sum",)
    _rowwise = ("sum",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        weight_decay_mode: str = "l2",
        rowwise: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps, "maximize": maximize}
        states = {"initial_accumulator_value": initial_accumulator_value, "rowwise": rowwise, "state_dtype": state_dtype}
        rounding = {"stochastic_rounding": stochastic_rounding, "seed": seed}
        super().__init__(params, {**defaults, "weight_decay_mode": weight_decay_mode, **states, **rounding})

    def _check_options(self, group: dict[str, Any]) -> None:
        check_range(group["lr"], "learning rate", 0.0)
        check_range(group["lr_decay"], "lr_decay value", 0.0)
        check_range(group["eps"], "epsilon value", 0.0)
        check_range(group["initial_accumulator_value"], "initial_accumulator_value", 0.0)
        check_common(group)

    def _new_tensors(self, p: Tensor, group: dict[str, Any], rows: torch.Size) -> dict[str, Callable[[], Tensor]]:
        shape = rows if group["rowwise"] else None
        return {"sum": lambda: self._zeros(p, group, shape).fill_(group["initial_accumulator_value"])}

    def _make_step(self, job: Job, step: int, options: dict[str, Any]) -> None:
        names = ("lr", "lr_decay", "eps", "weight_decay", "weight_decay_mode", "rowwise", "maximize")
        sparsekit.sparse_adagrad_step(
            job.p,
            job.state["sum"],
            job.indices,
            job.values,
            step=step,
            check=False,
            **{name: job.group[name] for name in names},
            **options,
        )

    def _make_flush(self, p: Tensor, group: dict[str, Any], state: dict[str, Any], options: dict[str, Any]) -> None:
        sparsekit.sparse_adagrad_flush(p, **options)


class SparseSGD(SparseOptimizer):
    """SGD for sparse gradients, with a momentum buffer of the parameter's size: only the rows that a gradient names are updated.

    Parameters
    ----------
    params : iterable of tensors, of (name, tensor) pairs, or of dicts
        Dense parameters of dtype float16, bfloat16, float32 or float64, on the CPU or CUDA devices, or parameter groups.
    lr : float or 1-element tensor
        Learning rate, >= 0.
    momentum : float
        >= 0.
    dampening : float
        ``momentum_buffer = momentum * momentum_buffer + (1 - dampening) * g``; not in the first step, as torch.optim.SGD.
    weight_decay : float
        >= 0.
    nesterov : bool
        Nesterov momentum; needs a momentum and no dampening.
    maximize, weight_decay_mode, moments, state_dtype, stochastic_rounding, seed
        As for ``SparseAdam``; ``moments`` says what happens to the momentum of rows that the gradient does not name.

    Raises
    ------
    ValueError, RuntimeError, IndexError
        As ``SparseAdam``.

    Notes
    -----
    State: ``step``, and ``momentum_buffer`` where there is momentum: dense, so that it does not grow from step to step, as the
    sparse buffer of torch.optim.SGD does. torch.optim.SGD's ``state_dict`` with dense buffers is accepted. Cost, determinism and
    source: ``sparsekit.sparse_sgd_step``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> table = torch.nn.Embedding(1000, 16, sparse=True)
    >>> optimizer = sparsekit.torch.SparseSGD(table.parameters(), lr=0.1, momentum=0.9, moments="exact")
    >>> table(torch.tensor([3, 5, 3])).square().sum().backward()
    >>> optimizer.step()
    """

    _full = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        weight_decay_mode: str = "l2",
        moments: str = "masked",
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        modes = {"maximize": maximize, "weight_decay_mode": weight_decay_mode, "moments": moments, "state_dtype": state_dtype}
        super().__init__(params, {**defaults, **modes, "stochastic_rounding": stochastic_rounding, "seed": seed})

    def _check_options(self, group: dict[str, Any]) -> None:
        check_range(group["lr"], "learning rate", 0.0)
        check_range(group["momentum"], "momentum value", 0.0)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        check_common(group)

    def _new_tensors(self, p: Tensor, group: dict[str, Any], rows: torch.Size) -> dict[str, Callable[[], Tensor]]:
        return {"momentum_buffer": lambda: self._zeros(p, group)} if group["momentum"] else {}

    def _make_step(self, job: Job, step: int, options: dict[str, Any]) -> None:
        names = ("lr", "dampening", "weight_decay", "maximize")
        sparsekit.sparse_sgd_step(
            job.p,
            job.indices,
            job.values,
            step=step,
            check=False,
            **{name: job.group[name] for name in names},
            **_sgd_options(job.group, job.state),
            **options,
        )

    def _make_flush(self, p: Tensor, group: dict[str, Any], state: dict[str, Any], options: dict[str, Any]) -> None:
        sparsekit.sparse_sgd_flush(p, **_sgd_options(group, state), **options)


def _sgd_options(group: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    buffer = {"momentum_buffer": state["momentum_buffer"]} if group["momentum"] else {}
    return {name: group[name] for name in ("momentum", "nesterov", "weight_decay_mode", "moments")} | buffer
