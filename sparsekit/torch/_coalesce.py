"""coalesce for torch sparse COO tensors."""

from typing import Any

import torch
from torch import Tensor

import sparsekit
from sparsekit.torch._convert import check_sparse_coo, from_sparse_tensor


def coalesce(tensor: Tensor, *, reduce: str = "sum", backend: str | None = None) -> Tensor:
    """Reduce the duplicates of a sparse COO tensor; torch's ``tensor.coalesce()``, faster, wider and repeatable.

    Parameters
    ----------
    tensor : sparse COO tensor, on the CPU
        Any number of sparse and dense dimensions, of any dtype of ``sparsekit.coalesce``.
    reduce : {"sum", "mean", "min", "max", "prod"}
        As for ``sparsekit.coalesce``.
    backend : str, optional
        See ``sparsekit.use_backend``.

    Returns
    -------
    sparse COO tensor
        Coalesced, and flagged so. The input's flag is not trusted: the data are looked at. Always new, never the input.

    Raises
    ------
    TypeError
        Not a sparse COO tensor; it requires grad and ``reduce`` is not "sum"; or as ``sparsekit.coalesce``.
    IndexError
        An index out of range.

    Notes
    -----
    Differentiable for ``reduce="sum"``: the gradient passes unchanged, as in torch. Cost and determinism as
    ``sparsekit.coalesce``: float16 and bfloat16 are accumulated in float32, float32 in float64, and rounded once.
    Source: ``torch.Tensor.coalesce``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> t = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3))
    >>> sparsekit.torch.coalesce(t).values()
    tensor([3., 9.])
    """
    check_sparse_coo(tensor, "tensor")
    if tensor.requires_grad and torch.is_grad_enabled():
        if reduce != "sum":
            raise TypeError(
                f"only reduce='sum' is differentiable, got {reduce!r} for a tensor that requires grad; detach it first"
            )
        summed: Tensor = _CoalesceSum.apply(tensor, backend)  # type: ignore[no-untyped-call]
        return summed
    return _coalesced(tensor, reduce, backend)


def _coalesced(tensor: Tensor, reduce: str, backend: str | None) -> Tensor:
    indices, values, shape = sparsekit.coalesce(*from_sparse_tensor(tensor), reduce=reduce, backend=backend)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)


class _CoalesceSum(torch.autograd.Function):
    """Both sides stand for the same dense tensor, so the gradient is the same."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, backend: str | None) -> Tensor:
        return _coalesced(tensor, "sum", backend)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
