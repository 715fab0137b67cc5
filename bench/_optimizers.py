"""The optimizers that ``python -m bench train`` knows, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BOTH = ("sparsekit", "torch")  # the drop-in and what it replaces: the same mathematics, so the losses must agree
_LAZY = {"weight_decay": 1e-3, "weight_decay_mode": "decoupled_lazy"}


@dataclass(frozen=True)
class Choice:
    """An optimizer of a library ("sparsekit" or "torch") and its options; ``rate`` is its learning rate over that of Adam."""

    library: str
    optimizer: str
    options: dict[str, Any]
    rate: float = 1.0

    def make(self, parameters: list[Any], lr: float) -> Any:
        module: Any
        if self.library == "sparsekit":
            import sparsekit.torch as module
        else:
            import torch.optim as module
        make: Callable[..., Any] = getattr(module, self.optimizer)
        return make(parameters, lr=lr * self.rate, **self.options)


CHOICES = {
    "sparsekit": Choice("sparsekit", "SparseAdam", {}),
    "torch": Choice("torch", "SparseAdam", {}),
    "adam-decayed": Choice("sparsekit", "SparseAdam", {"moments": "decayed"}),
    "adam-exact": Choice("sparsekit", "SparseAdam", {"moments": "exact"}),
    "adam-row-bias": Choice("sparsekit", "SparseAdam", {"bias_correction": "row"}),
    "adam-rowwise": Choice("sparsekit", "SparseAdam", {"rowwise": True}),
    "adam-amsgrad": Choice("sparsekit", "SparseAdam", {"amsgrad": True}),
    "adam-lazy-decay": Choice("sparsekit", "SparseAdam", _LAZY),
    "adam-whole-model": Choice("sparsekit", "Adam", {}),
    "adagrad": Choice("sparsekit", "SparseAdagrad", {}, 5.0),
    "adagrad-rowwise": Choice("sparsekit", "SparseAdagrad", {"rowwise": True}, 5.0),
    "torch-adagrad": Choice("torch", "Adagrad", {}, 5.0),
    "sgd": Choice("sparsekit", "SparseSGD", {}),
    "sgd-momentum": Choice("sparsekit", "SparseSGD", {"momentum": 0.9, "moments": "exact"}, 0.1),
    "torch-sgd": Choice("torch", "SGD", {}),
}


def state_bytes(optimizer: Any) -> int:
    """What the states of an optimizer take."""
    return sum(x.numel() * x.element_size() for state in optimizer.state.values() for x in state.values() if hasattr(x, "numel"))
