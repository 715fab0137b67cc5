"""sparsekit for torch: the optimizers, and coalesce for sparse COO tensors.

The functions of ``sparsekit`` take torch tensors as they are; this package holds what is torch's own. Importing it imports torch.
"""

from sparsekit.torch._coalesce import coalesce
from sparsekit.torch._convert import from_sparse_tensor, to_sparse_tensor
from sparsekit.torch._optimizers import SparseAdam

__all__ = ["SparseAdam", "coalesce", "from_sparse_tensor", "to_sparse_tensor"]
