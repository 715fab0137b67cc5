"""The CPU backend: nogil Numba kernels on ranges, driven by one thread pool.

The contract of each function stands in ``sparsekit/_protocol.py``.
"""

from sparsekit_numba._adagrad import sparse_adagrad_flush, sparse_adagrad_step
from sparsekit_numba._adam import sparse_adam_flush, sparse_adam_step
from sparsekit_numba._coalesce import coalesce, is_coalesced
from sparsekit_numba._jit import cache_folder
from sparsekit_numba._pool import set_num_threads
from sparsekit_numba._scratch import clear_cache
from sparsekit_numba._sgd import sparse_sgd_flush, sparse_sgd_step
from sparsekit_numba._topk import topk
from sparsekit_numba._warmup import warmup

__all__ = [
    "cache_folder",
    "clear_cache",
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
