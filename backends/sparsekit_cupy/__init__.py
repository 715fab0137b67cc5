"""The CUDA backend: CuPy arrays, kernels of our own in ``.cu`` files beside the code that launches them."""

from sparsekit_cupy._adagrad import sparse_adagrad_flush, sparse_adagrad_step
from sparsekit_cupy._adam import sparse_adam_flush, sparse_adam_step
from sparsekit_cupy._coalesce import coalesce, is_coalesced
from sparsekit_cupy._device import missing
from sparsekit_cupy._sgd import sparse_sgd_flush, sparse_sgd_step
from sparsekit_cupy._topk import topk

__all__ = [
    "coalesce",
    "devices",
    "is_coalesced",
    "missing",
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

devices = ("cuda",)


def set_num_threads(n: int) -> None:
    """The GPU has its own; there is nothing to set."""


def warmup() -> None:
    """Nothing: kernels are compiled on first use, in tenths of a second, and CuPy keeps them on disk."""
