"""Optimizers for parameters with sparse gradients."""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

import sparsekit

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class SparseAdam(Optimizer):
    """Adam for sparse gradients, as ``torch.optim.SparseAdam``: only the rows that a gradient names are updated.

    Parameters
    ----------
    params : iterable of tensors, of (name, tensor) pairs, or of dicts
        Dense parameters of dtype float16, bfloat16, float32 or float64, on the CPU, or parameter groups.
    lr : float or 1-element tensor
        Learning rate, > 0.
    betas : (float, float)
        Decay of the moments, each in [0, 1).
    eps : float
        Added to the root of the second moment, > 0.
    maximize : bool
        Ascend instead of descend.

    Raises
    ------
    ValueError
        A hyper-parameter out of range, a sparse or complex parameter; in ``add_param_group`` too.
    RuntimeError
        In ``step``: a gradient that is dense or does not fit its parameter. Nothing has been changed then, of any parameter.
    IndexError
        In ``step``: a gradient names a row that its parameter does not have. Nothing has been changed then.

    Notes
    -----
    State: ``step`` (int), ``exp_avg`` and ``exp_avg_sq`` for each parameter, as torch.optim.SparseAdam has it, so each loads the
    other's ``state_dict``. For float16 and bfloat16 parameters the states are float32, and stay so when a checkpoint is loaded.
    Parameters without a gradient are skipped. Cost, determinism and source: ``sparsekit.sparse_adam_step``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> table = torch.nn.Embedding(1000, 16, sparse=True)
    >>> optimizer = sparsekit.torch.SparseAdam(table.parameters(), lr=0.01)
    >>> table(torch.tensor([3, 5, 3])).square().sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group after checking its options and parameters; a group that fails is not added.

        Raises
        ------
        ValueError
            As the class.
        """
        super().add_param_group(param_group)  # fills in the defaults
        try:
            _check_group(self.param_groups[-1], len(self.param_groups) - 1)
        except Exception:
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; all gradients are checked before the first is applied.

        Parameters
        ----------
        closure : callable, optional
            Recomputes the loss and returns it.

        Returns
        -------
        The closure's result, or None.

        Raises
        ------
        RuntimeError, IndexError
            As the class.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        jobs = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, _ in jobs:
            _check_gradient(p)
        states = [self.state.get(p) or _new_state(p) for p, _ in jobs]
        for nothing in (True, False):  # first a step with no rows, which checks everything and writes nothing
            for (p, group), state in zip(jobs, states, strict=True):
                _step(p, group, state, nothing)
                if not nothing:
                    self.state[p] = state
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a ``state_dict`` of this class or of torch.optim.SparseAdam.

        Raises
        ------
        ValueError
            Its groups, or the shapes of its states, do not fit the parameters. Nothing has been loaded then.
        """
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(numbers, params, strict=False):  # torch checks the numbers of parameters
            for name in ("exp_avg", "exp_avg_sq"):
                saved = state_dict["state"].get(number, {}).get(name)
                if saved is not None and saved.shape != p.shape:
                    raise ValueError(
                        f"{name} of parameter {number} must have its shape {tuple(p.shape)}, got {tuple(saved.shape)}"
                    )
        super().load_state_dict(state_dict)
        # torch casts the states to the parameter's dtype; those of 16-bit parameters are float32 here.
        for number, p in zip(numbers, params, strict=True):
            if p in self.state:
                for name in ("exp_avg", "exp_avg_sq"):
                    saved = state_dict["state"][number][name]
                    self.state[p][name] = saved.to(device=p.device, dtype=_state_dtype(p), copy=True)


def _step(p: Tensor, group: dict[str, Any], state: dict[str, Any], nothing: bool) -> None:
    grad = p.grad
    assert grad is not None
    indices, values = grad._indices(), grad._values()
    if nothing:
        indices, values = indices[:, :0], values[:0]
    sparsekit.sparse_adam_step(
        p,
        state["exp_avg"],
        state["exp_avg_sq"],
        indices,
        values,
        step=state["step"] + 1,
        lr=group["lr"],
        betas=group["betas"],
        eps=group["eps"],
        maximize=group.get("maximize", False),
        check=False,  # _check_gradient has
    )
    if not nothing:
        state["step"] += 1


def _state_dtype(p: Tensor) -> torch.dtype:
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def _new_state(p: Tensor) -> dict[str, Any]:
    moments = {
        name: torch.zeros_like(p, dtype=_state_dtype(p), memory_format=torch.preserve_format)
        for name in ("exp_avg", "exp_avg_sq")
    }
    return {"step": 0, **moments}


def _check_options(group: dict[str, Any]) -> None:
    lr, eps, betas = group["lr"], group["eps"], group["betas"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got {lr.numel()} elements")
    if not 0.0 < lr < float("inf"):
        raise ValueError(f"Invalid learning rate: expected a finite number > 0, got {lr}")
    if not 0.0 < eps < float("inf"):
        raise ValueError(f"Invalid epsilon value: expected a finite number > 0, got {eps}")
    if len(betas) != 2:
        raise ValueError(f"Invalid betas: expected two numbers, got {betas}")
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: expected a number in [0, 1), got {beta}")


def _check_group(group: dict[str, Any], index: int) -> None:
    _check_options(group)
    params = list(enumerate(group["params"]))
    sparse = [[index, i] for i, p in params if p.layout != torch.strided]
    if sparse:
        raise ValueError(f"Sparse params at indices {sparse}: SparseAdam requires dense parameter tensors")
    complex_ = [[index, i] for i, p in params if p.is_complex()]
    if complex_:
        raise ValueError(f"Complex params at indices {complex_}: SparseAdam does not support complex parameters")
    for i, p in params:
        if p.dtype not in _FLOATS:
            raise ValueError(f"param at index {[index, i]} must have one of the dtypes {_FLOATS}, got {p.dtype}")


def _check_gradient(p: Tensor) -> None:
    grad = p.grad
    assert grad is not None
    where = f"the parameter of shape {tuple(p.shape)}"
    if grad.layout != torch.sparse_coo:
        raise RuntimeError(
            f"SparseAdam does not support dense gradients, please consider Adam instead: expected a sparse COO gradient for "
            f"{where}, got layout {grad.layout}; nn.Embedding needs sparse=True, and a weight that is also used densely (tied) "
            "gets dense gradients"
        )
    if grad.shape != p.shape or grad.dtype != p.dtype or grad.device != p.device:
        raise RuntimeError(
            f"the gradient must have its parameter's shape, dtype and device {tuple(p.shape)}, {p.dtype}, {p.device}, got "
            f"{tuple(grad.shape)}, {grad.dtype}, {grad.device}"
        )
    # is_coalesced with a shape checks the range of the indices; what it finds of their order does not matter.
    sparsekit.is_coalesced(grad._indices(), grad.shape)
