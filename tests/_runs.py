"""Runs of several optimizer steps on one table: the arrays that the modes need, gradients with gaps, changing learning rates."""

import numpy as np
from _cases import dtype_of

import sparsekit

ROWS = 8  # of which the last is never touched, the one before in step 1 only


class Run:
    """A table and its optimizer's state; ``step`` and ``flush`` call sparsekit, all else is bookkeeping."""

    def __init__(self, kind, param, state="float32", backend=None, rounding=None, steps=200, dims=None, **options):
        self.kind, self.options, self.backend, self.steps = kind, options, backend, 0
        self.rounding = rounding or {}
        dims = (len(param),) if dims is None else dims
        self.param, self.width = param.copy(), param.shape[len(dims) :]
        state = dtype_of(state)
        amsgrad, momentum = options.pop("amsgrad", False), options.get("momentum", 0.0)
        second = dims if options.get("rowwise") else param.shape
        self.moments = {}  # by position or by name, as the step takes them
        if kind == "adam":
            self.moments = {"exp_avg": np.zeros(param.shape, state), "exp_avg_sq": np.zeros(second, state)}
        elif kind == "adagrad":
            self.moments = {"state_sum": np.zeros(second, state)}
        self.arrays = {}
        if amsgrad:
            self.arrays["max_exp_avg_sq"] = np.zeros(second, state)
        if momentum:
            self.arrays["momentum_buffer"] = np.zeros(param.shape, state)
        if options.get("bias_correction") == "row":
            self.arrays["row_step"] = np.zeros(dims, np.int64)
        lazy = options.get("weight_decay_mode") == "decoupled_lazy"
        if lazy or options.get("moments", "masked") != "masked":
            self.arrays["last_step"] = np.zeros(dims, np.int64)
        if lazy or options.get("moments") == "exact":
            self.arrays["history"] = np.zeros((steps, 3))

    def step(self, indices, values, lr, **more):
        self.steps += 1
        function = getattr(sparsekit, f"sparse_{self.kind}_step")
        call = self.options | self.arrays | self.rounding | {"step": self.steps, "lr": lr, "backend": self.backend} | more
        function(self.param, *self.moments.values(), indices, values, **call)

    def flush(self, step=None):
        taken = ("betas", "eps", "momentum", "nesterov", "weight_decay_mode", "moments", "bias_correction", "rowwise")
        options = {name: self.options[name] for name in taken if name in self.options}
        moments = self.moments
        if self.kind == "adagrad":
            if "history" not in self.arrays:
                return
            options, moments = {}, {}
        step = self.steps if step is None else step
        call = options | self.arrays | self.rounding | {"step": step, "backend": self.backend}
        getattr(sparsekit, f"sparse_{self.kind}_flush")(self.param, *moments.values(), **call)

    def everything(self):
        return {"param": self.param, **self.moments, **self.arrays}


def rates(steps, lr=0.1):
    """Falling, with a warm-up, and 0 now and then."""
    return [0.0 if t % 6 == 5 else lr * min(1.0, t / 3) / t**0.5 for t in range(1, steps + 1)]


def gradients(seed, steps, width, dtype="float64", rows=ROWS):
    """For each step (indices, values), with duplicates, without any entry at times, and long gaps for some rows."""
    rng, out = np.random.default_rng(seed), []
    for t in range(1, steps + 1):
        nnz = 0 if t % 7 == 3 else 5
        indices = rng.integers(0, 3 if t % 4 else rows - 2, nnz)
        if t == 1:
            indices[0] = rows - 2
        out.append((indices, rng.standard_normal((nnz, width)).astype(dtype_of(dtype))))
    return out


def summed(indices, values):
    """{row: sum of its gradients}, in float64."""
    total = {}
    for row, value in zip(indices.tolist(), values.astype(np.float64), strict=True):
        total[row] = total.get(row, 0) + value
    return total
