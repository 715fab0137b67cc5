"""One optimizer for models with sparse and dense gradients."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from sparsekit.torch._optimizer_base import Job
from sparsekit.torch._optimizers import SparseAdam


class Adam(SparseAdam):
    """Adam for a whole model: sparse gradients as ``SparseAdam``, dense ones as torch.optim.Adam or AdamW, in one optimizer.

    Parameters
    ----------
    params : iterable of tensors, of (name, tensor) pairs, or of dicts
        Parameters of dtype float16, bfloat16, float32 or float64, on the CPU or CUDA devices, or parameter groups.
    lr, betas, eps, maximize, weight_decay, amsgrad
        Of all parameters; see ``SparseAdam``.
    weight_decay_mode : str
        For dense gradients "l2" is that of torch.optim.Adam, "decoupled" and "decoupled_lazy" are that of torch.optim.AdamW.
    moments, bias_correction, rowwise, state_dtype, stochastic_rounding, seed
        Of parameters with sparse gradients; see ``SparseAdam``.

    Raises
    ------
    ValueError, RuntimeError, IndexError
        As ``SparseAdam``; a dense gradient is no error here.

    Notes
    -----
    What a parameter's first gradient is decides its state: ``step`` is an int with sparse gradients, a float32 tensor, as in
    torch.optim.Adam, with dense ones, whose states have the parameter's dtype, as there. A parameter that has had a sparse
    gradient treats a dense one as a gradient that names every row; one that has had dense gradients keeps its state when the
    first sparse one comes. torch.optim.Adam's, AdamW's and SparseAdam's checkpoints are accepted. Works with
    torch.optim.lr_scheduler and torch.amp.GradScaler. Dense gradients go through torch's fused kernel.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> model = torch.nn.Sequential(torch.nn.EmbeddingBag(1000, 16, sparse=True), torch.nn.Linear(16, 1))
    >>> optimizer = sparsekit.torch.Adam(model.parameters(), lr=0.01, weight_decay=0.1, weight_decay_mode="decoupled_lazy")
    >>> model(torch.tensor([[3, 5, 3]])).sum().backward()
    >>> optimizer.step()
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a ``state_dict`` of this class, of SparseAdam (sparsekit's or torch's), or of torch.optim.Adam or AdamW.

        Raises
        ------
        ValueError
            Its groups, or the shapes of its states, do not fit the parameters. Nothing has been loaded then.
        """
        groups = []
        for group in state_dict["param_groups"]:  # AdamW's says so; its decay is decoupled here too
            if group.get("decoupled_weight_decay") and "weight_decay_mode" not in group:
                mode = self.defaults["weight_decay_mode"]
                group = {**group, "weight_decay_mode": "decoupled" if mode == "l2" else mode}
            groups.append(group)
        super().load_state_dict({**state_dict, "param_groups": groups})

    def _check_gradient(self, p: Tensor) -> None:
        grad = p.grad
        if grad is None or grad.layout != torch.strided:
            super()._check_gradient(p)

    def _is_dense(self, p: Tensor) -> bool:
        """Whether torch's Adam is to update p: its gradient is dense, and it has not had a sparse one."""
        assert p.grad is not None
        return p.grad.layout == torch.strided and not isinstance(self.state.get(p, {}).get("step"), int)

    def _jobs(self) -> Iterator[Job]:
        for number, p, group in self._params():
            if p.grad is None or self._is_dense(p):
                continue
            if p.grad.layout == torch.strided:
                rows = self._rows(p, group)
                indices = torch.ones(rows, dtype=torch.bool, device=p.device).nonzero().T
                yield self._job(number, p, group, indices, p.grad.reshape(-1, *p.shape[len(rows) :]))
            else:
                yield self._job(number, p, group, p.grad._indices(), p.grad._values())

    def _rows(self, p: Tensor, group: dict[str, Any]) -> torch.Size:
        """The sparse dimensions that p's states were made for; without such states, its first."""
        state = self.state[p]
        made = [state[name] for name in ("last_step", "row_step") if name in state]
        made += [state["exp_avg_sq"]] if group["rowwise"] else []
        return made[0].shape if made else p.shape[:1]

    def _step_others(self) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None and self._is_dense(p)]
            if params:
                self._step_dense(params, group)

    def _step_dense(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
                state |= {name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in ("exp_avg", "exp_avg_sq")}
            if group["amsgrad"] and "max_exp_avg_sq" not in state:
                state["max_exp_avg_sq"] = state["exp_avg_sq"].clone()
        states = [self.state[p] for p in params]
        beta1, beta2 = group["betas"]
        adam(
            params,
            [p.grad for p in params if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            decoupled_weight_decay=group["weight_decay_mode"] != "l2",
        )
