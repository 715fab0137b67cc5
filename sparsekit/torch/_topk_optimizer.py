"""TopK: any torch optimizer, fed the largest coordinates of what its gradients add up to."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparsekit.torch._clip import total_norm
from sparsekit.torch._gradients import added, summed_gradients, values_of
from sparsekit.torch._topk import largest_masks, share, with_values

# The shares of Lin et al. 2018, section 3.3, one a warm-up stage; their last, 0.1 %, is the ratio asked for.
WARMUP_RATIOS = (0.25, 0.0625, 0.015625, 0.004)
_OPTIONS = ("k", "ratio", "error_feedback", "momentum_correction", "momentum_masking", "clip", "warmup", "chosen_only")


class TopK(Optimizer):
    """Let an optimizer see only the k largest gradient coordinates of the whole network; what it did not see is added later.

    Parameters
    ----------
    base_optimizer : torch.optim.Optimizer
        Does the update. Its parameter groups are this optimizer's own, so hyper-parameters and schedulers act on either.
    k : int, optional
        How many coordinates in all each step; all of them where there are fewer.
    ratio : float, optional
        Instead of k: the share of the coordinates of the parameters that have a gradient, in [0, 1], rounded up.
    error_feedback : bool
        Add what was left out to the next step's gradient; else it is lost.
    momentum_correction : float
        Momentum in [0, 1) of the gradient *before* the choice, as DGC has it; the base optimizer must have none then.
    momentum_masking : bool
        Set that momentum to zero where a coordinate was chosen.
    clip : float, optional
        Clip the norm of the fresh gradient to this. For n workers DGC takes n**-0.5 of the usual threshold.
    warmup : int
        Steps of each warm-up stage (an epoch, in DGC), in which 25 %, 6.25 %, 1.5625 % and 0.4 % are chosen, where that is more.
    chosen_only : bool
        Move only the chosen coordinates of the parameters, whatever momentum, moments and weight decay would do to others.

    Raises
    ------
    TypeError, ValueError
        An option out of range; not exactly one of k and ratio; momentum in both places; in ``load_state_dict``, a state that does
        not fit.
    TypeError, ValueError, IndexError
        In ``step``: as ``topk_gradients_``; ValueError too where a gradient, or what it adds up to, is infinite, NaN or too large
        for a 16-bit parameter. Nothing has been changed then; nor, of this class, where the base optimizer raises.

    Notes
    -----
    With g the gradient, clipped, r the residual, m the momentum factor::

        u = m * u + g                          momentum correction; else u = g
        a = r + u                              accumulated; without error feedback a = u
        applied = a where chosen, else 0       the k largest |a| over all parameters
        r = a - applied                        residual = accumulated - applied (no average over workers enters)
        u = 0 where chosen                     momentum masking
        base_optimizer.step() on applied

    State, for each parameter: ``residual``, ``momentum_buffer``; sparse where its gradients are, so that no table is made dense;
    float32 for 16-bit parameters, whose residual so keeps the rounding error too. In ``state_dict``, with the options,
    the number of steps, and the base optimizer's under "base". ``.grad`` is the caller's: it is as before after ``step``, and
    ``zero_grad`` never touches the residual. Parameters without a gradient are skipped; their residual waits. NaN is refused
    because it would never leave the residual; ``GradScaler`` and ``grads_are_finite`` tell which steps to skip.
    Cost: a few temporary copies of the gradients; a copy of the parameters with ``chosen_only``. Deterministic.
    Source: Lin et al. 2018, Deep Gradient Compression, algorithm 4; error feedback: Stich et al. 2018, Karimireddy et al. 2019.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = sparsekit.torch.TopK(torch.optim.SGD([weight], lr=1.0), k=1)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([3.0, 2.0, 1.0])
    ...     optimizer.step()
    >>> weight.detach(), optimizer.state[weight]["residual"]
    (tensor([-3., -4.,  0.]), tensor([3., 0., 2.]))
    """

    base: Optimizer
    k: int | None
    ratio: float | None
    error_feedback: bool
    momentum_correction: float
    momentum_masking: bool
    clip: float | None
    warmup: int
    chosen_only: bool
    steps: int

    def __init__(
        self,
        base_optimizer: Optimizer,
        k: int | None = None,
        *,
        ratio: float | None = None,
        error_feedback: bool = True,
        momentum_correction: float = 0.0,
        momentum_masking: bool = True,
        clip: float | None = None,
        warmup: int = 0,
        chosen_only: bool = False,
    ) -> None:
        if not isinstance(base_optimizer, Optimizer):
            raise TypeError(f"base_optimizer must be a torch.optim.Optimizer, got {type(base_optimizer).__name__}")
        options = (k, ratio, error_feedback, momentum_correction, momentum_masking, clip, warmup, chosen_only)
        # Made as an unpickled optimizer is: the parameter groups are the base optimizer's.
        self.__setstate__(
            {
                "defaults": dict(base_optimizer.defaults),
                "state": defaultdict(dict),
                "base": base_optimizer,
                "steps": 0,
                **dict(zip(_OPTIONS, options, strict=True)),
            }
        )
        self._check_options()

    def _check_options(self) -> None:
        if (self.k is None) == (self.ratio is None):
            raise TypeError("expected exactly one of k and ratio, got " + ("neither" if self.k is None else "both"))
        for name, number in (("k", self.k), ("warmup", self.warmup)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"{name} must be an int, got {type(number).__name__}")
            if number is not None and number < 0:
                raise ValueError(f"{name} must be >= 0, got {number}")
        if self.ratio is not None:
            share(self.ratio, 0)
        if not 0 <= self.momentum_correction < 1:
            raise ValueError(f"momentum_correction must lie in [0, 1), got {self.momentum_correction}")
        if self.momentum_correction and any(group.get("momentum") for group in self.param_groups):
            raise ValueError("momentum_correction is the momentum: the base optimizer must have momentum=0")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be > 0, got {self.clip}")

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base optimizer's own."""
        return self.base.param_groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer.

        Raises
        ------
        As the base optimizer.
        """
        self.base.add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Choose, and let the base optimizer step on what was chosen.

        Parameters
        ----------
        closure : callable, optional
            Recomputes the loss and returns it; called once.

        Returns
        -------
        The closure's result, or None.

        Raises
        ------
        TypeError, ValueError, IndexError
            As the class.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params, fresh = summed_gradients([p for group in self.param_groups for p in group["params"]])
        old = [self.state.get(p, {}) for p in params]
        momenta = self._momenta(self._clipped(fresh), old)
        sums = [added(s["residual"], u) if "residual" in s else u for s, u in zip(old, momenta, strict=True)]
        _check_finite(params, sums)
        masks = largest_masks(sums, self._k(sum(p.numel() for p in params)), None)
        applied = [_applied(a, mask, p.dtype) for a, mask, p in zip(sums, masks, params, strict=True)]

        self._step_base(params, sums, masks, applied)
        for p, u, a, mask, sent in zip(params, momenta, sums, masks, applied, strict=True):
            new: dict[str, Tensor] = {}
            if self.error_feedback:
                rest = values_of(a) - sent
                new["residual"] = with_values(a, rest, rest != 0)
            if self.momentum_correction:
                new["momentum_buffer"] = _masked(u, a, mask) if self.momentum_masking else u
            if new:
                self.state[p] = new
        self.steps += 1
        return loss

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients in the dtype of the states, scaled to the norm ``clip`` at most; never written to."""
        wide = [grad.detach().to(_state_dtype(grad.dtype)) for grad in grads]
        if self.clip is None:
            return wide
        scale = (self.clip / (total_norm(wide, 2.0) + 1e-6)).clamp(max=1.0)
        return [grad * scale.to(grad.dtype) for grad in wide]

    def _momenta(self, grads: list[Tensor], old: list[dict[str, Tensor]]) -> list[Tensor]:
        m = self.momentum_correction
        if not m:
            return grads
        return [added(s["momentum_buffer"] * m, g) if "momentum_buffer" in s else g for g, s in zip(grads, old, strict=True)]

    def _k(self, n: int) -> int:
        k = share(self.ratio, n) if self.k is None else min(self.k, n)
        stage = self.steps // self.warmup if self.warmup else len(WARMUP_RATIOS)
        return k if stage >= len(WARMUP_RATIOS) else max(k, share(WARMUP_RATIOS[stage], n))

    def _step_base(self, params: list[Tensor], sums: list[Tensor], masks: list[Tensor], applied: list[Tensor]) -> None:
        grads = [p.grad for p in params]
        before = [p.clone() for p in params] if self.chosen_only else []
        try:
            for p, a, mask, sent in zip(params, sums, masks, applied, strict=True):
                p.grad = with_values(a, sent, mask)
            self.base.step()
        finally:
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
        for p, a, mask, old in zip(params, sums, masks, before, strict=self.chosen_only):
            chosen = tuple(a._indices()) if a.is_sparse else ...
            moved = torch.where(mask, p[chosen], old[chosen])
            p.copy_(old)
            p[chosen] = moved

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later run needs to go on to the bit; plain containers and tensors.

        Returns
        -------
        dict
            "state" (residuals, momenta), "param_groups", "options" (k, ratio and so on), "steps" (where the warm-up stands), and
            the base optimizer's state_dict under "base".
        """
        return {**super().state_dict(), "options": self._options(), "steps": self.steps, "base": self.base.state_dict()}

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTIONS}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave; the saved options replace this optimizer's, as torch has it for lr.

        Raises
        ------
        ValueError
            It is no TopK's, or its groups or shapes do not fit. Nothing has been loaded then.
        """
        if missing := {"base", "options", "steps"} - state_dict.keys():
            raise ValueError(
                f"expected the state_dict of a TopK, got one without {', '.join(sorted(missing))}; "
                "the base optimizer's goes to .base.load_state_dict"
            )
        if state_dict["options"].keys() != set(_OPTIONS):
            raise ValueError(f"expected the options {', '.join(_OPTIONS)}, got {', '.join(state_dict['options'])}")
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        pairs = list(zip(numbers, params, strict=False))  # the base optimizer checks the numbers of parameters
        for number, p in pairs:
            for name, saved in state_dict["state"].get(number, {}).items():
                if saved.shape != p.shape:
                    raise ValueError(
                        f"{name} of parameter {number} must have its shape {tuple(p.shape)}, got {tuple(saved.shape)}"
                    )
        self.base.load_state_dict(state_dict["base"])
        super().load_state_dict(state_dict)
        self.steps = state_dict["steps"]
        for name, option in state_dict["options"].items():
            setattr(self, name, option)
        for number, p in pairs:  # torch casts the states to the parameter's dtype; those of 16-bit parameters are float32
            for name, saved in state_dict["state"].get(number, {}).items():
                self.state[p][name] = saved.to(device=p.device, dtype=_state_dtype(p.dtype), copy=True)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("defaults", "state", "base", "steps")} | self._options()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "param_groups"})


def _state_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _check_finite(params: list[Tensor], sums: list[Tensor]) -> None:
    for p, a in zip(params, sums, strict=True):
        values = values_of(a).to(p.dtype)
        if values.numel() and not torch.isfinite(torch.linalg.vector_norm(values, float("inf"))):
            raise ValueError(
                f"the gradient, or what it adds up to, of the parameter of shape {tuple(p.shape)} must be finite in {p.dtype}; "
                "nothing has been changed"
            )


def _applied(accumulated: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The accumulated values where chosen, else 0, in the parameter's dtype."""
    return values_of(accumulated).masked_fill(~mask, 0).to(dtype)


def _masked(momentum: Tensor, accumulated: Tensor, mask: Tensor) -> Tensor:
    """The momentum without the chosen coordinates, which are given where the accumulated gradient has its values."""
    if accumulated.is_sparse:  # which names every row of the momentum: bring both to the same rows
        momentum = added(momentum, with_values(accumulated, torch.zeros_like(accumulated._values()), mask | True))
    values = values_of(momentum).masked_fill(mask, 0)
    return with_values(momentum, values, values != 0)
