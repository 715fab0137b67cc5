"""What the optimizers for sparse gradients share: every check before the first write, lazy rows, checkpoints."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

import sparsekit

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LEAST_HISTORY = 64  # steps that a new history has room for
_PER_ROW = ("last_step", "row_step")


class Job(NamedTuple):
    """A parameter whose turn it is, with its gradient as COO and the state that is stored when all checks have passed."""

    number: int
    p: Tensor
    group: dict[str, Any]
    state: dict[str, Any]
    indices: Tensor
    values: Tensor


class SparseOptimizer(Optimizer):
    """An optimizer whose subclass says what its states are and which functions on arrays make and flush a step."""

    _full: ClassVar[tuple[str, ...]]  # states of the parameter's shape,
    _rowwise: ClassVar[tuple[str, ...]] = ()  # and those of them that have one number a row with rowwise=True

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():  # which another optimizer's checkpoint does not have
                group.setdefault(name, value)

    def _check_options(self, group: dict[str, Any]) -> None:
        """ValueError for a hyper-parameter out of range."""
        raise NotImplementedError

    def _new_tensors(self, p: Tensor, group: dict[str, Any], rows: torch.Size) -> dict[str, Callable[[], Tensor]]:
        """How the states that the group asks for, all but those of the lazy modes, are made for a parameter at step 0."""
        raise NotImplementedError

    def _make_step(self, job: Job, step: int, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def _make_flush(self, p: Tensor, group: dict[str, Any], state: dict[str, Any], options: dict[str, Any]) -> None:
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group after checking its options and parameters; a group that fails is not added.

        Raises
        ------
        ValueError
            As the class.
        """
        super().add_param_group(param_group)  # fills in the defaults
        try:
            self._check_options(self.param_groups[-1])
            self._check_params(self.param_groups[-1], len(self.param_groups) - 1)
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
        for _, p, _ in self._params():
            if p.grad is not None:
                self._check_gradient(p)
        jobs = list(self._jobs())
        for nothing in (True, False):  # first a step with no rows, which checks everything and updates nothing
            for job in jobs:
                now = job._replace(indices=job.indices[:, :0], values=job.values[:0]) if nothing else job
                self._make_step(now, job.state["step"] + 1, self._lazy_options(now))
                if not nothing:
                    job.state["step"] += 1
                    self.state[job.p] = job.state
        self._step_others()
        return loss

    @torch.no_grad()
    def flush(self) -> None:
        """Bring every row of every parameter up to date, for evaluation, saving, or use without this optimizer.

        In the modes that put off what a step does to rows that its gradient does not name ("decoupled_lazy", "decayed", "exact");
        in the others there is nothing to do. Training may go on afterwards, and a ``state_dict`` is complete with or without it.

        Notes
        -----
        Cost: one pass over the parameters and states of those modes. A second flush changes nothing.
        """
        for number, p, group in self._params():
            state = self.state.get(p)
            if state and "last_step" in state:
                options = {"step": state["step"], **_lazy_arrays(state), **_rounding(group, number)}
                self._make_flush(p, group, state, options)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a ``state_dict`` of this class or of torch's optimizer of the same method.

        Raises
        ------
        ValueError
            Its groups, or the shapes of its states, do not fit the parameters. Nothing has been loaded then.
        """
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        groups = [group for group in state_dict["param_groups"] for _ in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, group, p in zip(numbers, groups, params, strict=False):  # torch checks the numbers of parameters
            for name, saved in state_dict["state"].get(number, {}).items():
                self._check_saved(name, saved, p, group, number)
        super().load_state_dict(state_dict)
        for number, (_, p, group) in zip(numbers, self._params(), strict=True):
            for name, saved in state_dict["state"].get(number, {}).items():
                if isinstance(saved, Tensor):  # torch casts it to the parameter's dtype, or shares it
                    dtype = self._state_dtype(p, group) if name in self._full else saved.dtype
                    self.state[p][name] = saved.to(device=p.device, dtype=dtype, copy=True)

    def _check_saved(self, name: str, saved: Any, p: Tensor, group: dict[str, Any], number: int) -> None:
        if name in self._full or name in _PER_ROW:
            rowwise = name in self._rowwise and group.get("rowwise", self.defaults.get("rowwise", False))
            wanted = p.shape[: saved.dim()] if rowwise or name in _PER_ROW else p.shape
            if rowwise and "rowwise" not in group:  # of an optimizer that has no such mode
                wanted = p.shape[:1]
            if saved.shape != wanted:
                raise ValueError(f"{name} of parameter {number} must have its shape {tuple(wanted)}, got {tuple(saved.shape)}")
        elif name == "history" and (saved.dim() != 2 or saved.shape[1] != 3):
            raise ValueError(f"history of parameter {number} must have the shape (capacity, 3), got {tuple(saved.shape)}")

    def _params(self) -> Iterator[tuple[int, Tensor, dict[str, Any]]]:
        number = 0
        for group in self.param_groups:
            for p in group["params"]:
                yield number, p, group
                number += 1

    def _jobs(self) -> Iterator[Job]:
        for number, p, group in self._params():
            if p.grad is not None:
                yield self._job(number, p, group, p.grad._indices(), p.grad._values())

    def _job(self, number: int, p: Tensor, group: dict[str, Any], indices: Tensor, values: Tensor) -> Job:
        return Job(number, p, group, self._complete(p, group, p.shape[: indices.shape[0]]), indices, values)

    def _step_others(self) -> None:
        """Update the parameters that have no job; here there are none."""

    def _complete(self, p: Tensor, group: dict[str, Any], rows: torch.Size) -> dict[str, Any]:
        """A copy of the parameter's state, the tensors shared, to which what the group's modes need is added.

        Where the state comes from an optimizer without those modes, every row is up to date.
        """
        state = dict(self.state.get(p, {}))
        state["step"] = step = int(state.get("step", 1 if state else 0))
        for name, make in self._new_tensors(p, group, rows).items():
            saved = state.get(name)
            state[name] = make() if saved is None else saved.to(self._state_dtype(p, group)) if name in self._full else saved
        lazy, moments = group["weight_decay_mode"] == "decoupled_lazy", group.get("moments", "masked")
        if lazy or moments != "masked":
            state.setdefault("last_step", torch.full(rows, step, dtype=torch.int64, device=p.device))
        if lazy or moments == "exact":
            state["history"] = _with_room(state.get("history"), step, float(group["lr"]), p.device)
        return state

    def _lazy_options(self, job: Job) -> dict[str, Any]:
        return {**_lazy_arrays(job.state), **_rounding(job.group, job.number)}

    def _state_dtype(self, p: Tensor, group: dict[str, Any]) -> torch.dtype:
        dtype: torch.dtype = group.get("state_dtype") or (torch.float64 if p.dtype == torch.float64 else torch.float32)
        return dtype

    def _zeros(self, p: Tensor, group: dict[str, Any], shape: torch.Size | None = None) -> Tensor:
        dtype = self._state_dtype(p, group)
        if shape is None:
            return torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        return torch.zeros(shape, dtype=dtype, device=p.device)

    def _check_params(self, group: dict[str, Any], index: int) -> None:
        name = type(self).__name__
        params = list(enumerate(group["params"]))
        sparse = [[index, i] for i, p in params if p.layout != torch.strided]
        if sparse:
            raise ValueError(f"Sparse params at indices {sparse}: {name} requires dense parameter tensors")
        complex_ = [[index, i] for i, p in params if p.is_complex()]
        if complex_:
            raise ValueError(f"Complex params at indices {complex_}: {name} does not support complex parameters")
        for i, p in params:
            if p.dtype not in FLOATS:
                raise ValueError(f"param at index {[index, i]} must have one of the dtypes {FLOATS}, got {p.dtype}")
            if p.dtype == torch.float64 and group.get("state_dtype") not in (None, torch.float64):
                raise ValueError(
                    f"param at index {[index, i]} has dtype torch.float64 and so must its states, got "
                    f"state_dtype={group['state_dtype']}"
                )

    def _check_gradient(self, p: Tensor) -> None:
        grad = p.grad
        assert grad is not None
        where = f"the parameter of shape {tuple(p.shape)}"
        if grad.layout != torch.sparse_coo:
            raise RuntimeError(
                f"{type(self).__name__} does not support dense gradients, please consider sparsekit.torch.Adam instead: expected "
                f"a sparse COO gradient for {where}, got layout {grad.layout}; nn.Embedding needs sparse=True, and a weight that "
                "is also used densely (tied) gets dense gradients"
            )
        if grad.shape != p.shape or grad.dtype != p.dtype or grad.device != p.device:
            raise RuntimeError(
                f"the gradient must have its parameter's shape, dtype and device {tuple(p.shape)}, {p.dtype}, {p.device}, got "
                f"{tuple(grad.shape)}, {grad.dtype}, {grad.device}"
            )
        # is_coalesced with a shape checks the range of the indices; what it finds of their order does not matter.
        # On a CUDA device that would be a wait for each parameter; there the steps go without.
        if not p.is_cuda:
            sparsekit.is_coalesced(grad._indices(), grad.shape)


def _lazy_arrays(state: dict[str, Any]) -> dict[str, Any]:
    return {name: state[name] for name in ("last_step", "history") if name in state}


def _with_room(history: Tensor | None, step: int, lr: float, device: torch.device) -> Tensor:
    """A history with room for the next step; a new one tells of no decay so far."""
    if history is not None and history.shape[0] > step:
        return history
    larger = torch.zeros(max(_LEAST_HISTORY, 2 * (step + 1)), 3, dtype=torch.float64, device=device)
    if history is not None:
        larger[: history.shape[0]] = history
    elif step:
        larger[step - 1, ::2] = lr
    return larger


def _rounding(group: dict[str, Any], number: int) -> dict[str, Any]:
    """Each parameter draws for itself."""
    if not group["stochastic_rounding"]:
        return {}
    return {"rounding": "stochastic", "seed": group["seed"] + (number << 32)}


def check_range(value: Any, what: str, low: float, *, open_: bool = False, below: float = float("inf")) -> None:
    """ValueError unless low <= value < below (open_: low < value), as torch words it."""
    if isinstance(value, Tensor) and value.numel() != 1:  # only lr may be a tensor
        raise ValueError(f"Tensor lr must be 1-element, got {value.numel()} elements")
    if not ((low < value if open_ else low <= value) and value < below):
        bounds = f"{'>' if open_ else '>='} {low:g}" + ("" if below == float("inf") else f" and < {below:g}")
        raise ValueError(f"Invalid {what}: {value} (expected a finite number {bounds})")


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"Invalid {name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def check_common(group: dict[str, Any]) -> None:
    """The options that all these optimizers have."""
    check_range(group["weight_decay"], "weight_decay value", 0.0)
    check_choice(group["weight_decay_mode"], "weight_decay_mode", ("l2", "decoupled", "decoupled_lazy"))
    check_choice(group.get("moments", "masked"), "moments", ("masked", "decayed", "exact"))
    if group["state_dtype"] not in (None, *FLOATS):
        raise ValueError(f"Invalid state_dtype: expected None or one of {FLOATS}, got {group['state_dtype']}")
