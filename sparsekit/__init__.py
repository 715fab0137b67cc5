"""sparsekit: coalesce, global top-k and sparse optimizer steps on raw COO arrays, for NumPy, torch and any DLPack array."""

from sparsekit._accumulate import add
from sparsekit._adagrad import sparse_adagrad_flush, sparse_adagrad_step
from sparsekit._adam import sparse_adam_flush, sparse_adam_step
from sparsekit._coalesce import coalesce, is_coalesced
from sparsekit._coo import COO
from sparsekit._registry import (
    BackendUnavailableError,
    available_backends,
    clear_cache,
    get_num_threads,
    set_num_threads,
    use_backend,
)
from sparsekit._sgd import sparse_sgd_flush, sparse_sgd_step
from sparsekit._topk import topk, topk_mask

__version__ = "0.1.0"

__all__ = [
    "COO",
    "BackendUnavailableError",
    "__version__",
    "add",
    "available_backends",
    "clear_cache",
    "coalesce",
    "get_num_threads",
    "is_coalesced",
    "set_num_threads",
    "sparse_adagrad_flush",
    "sparse_adagrad_step",
    "sparse_adam_flush",
    "sparse_adam_step",
    "sparse_sgd_flush",
    "sparse_sgd_step",
    "topk",
    "topk_mask",
    "use_backend",
]
