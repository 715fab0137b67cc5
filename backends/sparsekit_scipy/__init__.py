"""The reference backend: the plainest correct code for each operation, on NumPy and scipy.sparse; one thread.

The contract of each function stands in ``sparsekit/_protocol.py``.
"""

from sparsekit_scipy._adagrad import sparse_adagrad_flush, sparse_adagrad_step
from sparsekit_scipy._adam import sparse_adam_flush, sparse_adam_step
from sparsekit_scipy._coalesce import coalesce, is_coalesced
from sparsekit_scipy._sgd import sparse_sgd_flush, sparse_sgd_step
from sparsekit_scipy._topk import topk

__all__ = [
    "coalesce",
    "devices",
    "is_coalesced",
    "set_num_threads",
    "sparse_adagrad_flush",
    "sparse_adagrad_step",
    "sparse_adam_flush",
    "sparse_adam_step",
    "sparse_sgd_flush",
    "sparse_sgd_step",
    "topk",
    "warmup",
]

devices = ("cpu",)


def set_num_threads(n: int) -> None:
    """Nothing to do: this backend runs on one thread."""


def warmup() -> None:
    """Nothing to do: this backend compiles nothing."""
