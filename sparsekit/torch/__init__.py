"""sparsekit for torch: the optimizers, coalesce for sparse COO tensors, and what a training step does to gradients.

The functions of ``sparsekit`` take torch tensors as they are; this package holds what is torch's own. Importing it imports torch.
"""

from sparsekit.torch._clip import clip_grad_norm_, clip_grad_value_
from sparsekit.torch._coalesce import coalesce
from sparsekit.torch._convert import from_sparse_tensor, to_sparse_tensor
from sparsekit.torch._ddp import TopKState, sparse_hook, topk_hook
from sparsekit.torch._distributed import sparse_all_reduce_
from sparsekit.torch._gradients import accumulate_grad_, coalesce_grads_, grads_are_finite, unscale_grads_
from sparsekit.torch._mixed import Adam
from sparsekit.torch._optimizers import SparseAdagrad, SparseAdam, SparseSGD
from sparsekit.torch._topk import topk_gradients_
from sparsekit.torch._topk_optimizer import TopK

__all__ = [
    "Adam",
    "SparseAdagrad",
    "SparseAdam",
    "SparseSGD",
    "TopK",
    "TopKState",
    "accumulate_grad_",
    "clip_grad_norm_",
    "clip_grad_value_",
    "coalesce",
    "coalesce_grads_",
    "from_sparse_tensor",
    "grads_are_finite",
    "sparse_all_reduce_",
    "sparse_hook",
    "to_sparse_tensor",
    "topk_gradients_",
    "topk_hook",
    "unscale_grads_",
]
