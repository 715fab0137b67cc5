"""Top-k gradients over a whole network, dense and sparse parameters together."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

import sparsekit
from sparsekit.torch._gradients import summed_gradients, values_of


def largest_masks(grads: list[Tensor], k: int | None, ratio: float | None) -> list[Tensor]:
    """For each coalesced gradient, which of the numbers that it stores are among the k largest of all.

    Coordinates that a sparse gradient does not store are zeros, so beyond the stored numbers there is nothing to choose.
    """
    n = sum(grad.numel() for grad in grads)
    if (k is None) == (ratio is None):
        raise TypeError("expected exactly one of k and ratio, got " + ("neither" if k is None else "both"))
    if k is None:
        k = share(ratio, n)
    elif isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if not 0 <= k <= n:
        raise ValueError(f"k must lie between 0 and {n}, the number of coordinates; got {k}")
    parts = [values_of(grad) for grad in grads]
    masks: list[Tensor] = sparsekit.topk_mask(parts, min(k, sum(part.numel() for part in parts)))
    return masks


def share(ratio: float | None, n: int) -> int:
    """That part of n, rounded up."""
    if not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise ValueError(f"ratio must be a number in [0, 1], got {ratio!r}")
    return math.ceil(ratio * n)


def with_values(grad: Tensor, values: Tensor, keep: Tensor) -> Tensor:
    """A gradient of these values in the place of its own; of a sparse one only the rows where ``keep`` is true anywhere."""
    if not grad.is_sparse:
        return values
    rows = keep.flatten(1).any(1) if keep.dim() > 1 else keep
    indices = grad._indices()[:, rows]
    return torch.sparse_coo_tensor(indices, values[rows], grad.shape, is_coalesced=True, check_invariants=False)


@torch.no_grad()
def topk_gradients_(parameters: Tensor | Iterable[Tensor], k: int | None = None, *, ratio: float | None = None) -> None:
    """Keep the k gradient coordinates of largest magnitude over the whole network, and zero all others in place.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        Those without a gradient are skipped; dense and sparse gradients may be mixed, floats of several dtypes too.
    k : int, optional
        How many coordinates in all, between 0 and the sum of ``p.numel()`` over the gradients.
    ratio : float, optional
        Instead of k: the share of that sum, in [0, 1], rounded up.

    Raises
    ------
    TypeError, ValueError, IndexError
        Not exactly one of k and ratio, or out of range; as ``coalesce_grads_`` and ``sparsekit.topk``. Nothing has been changed.

    Notes
    -----
    A coordinate is one number, not a row. Ties go to the lowest position, earlier parameters first; NaN ranks above infinity.
    Dense gradients are written in place. Sparse ones are coalesced first and replaced by the rows that hold a chosen coordinate.
    Cost: as ``sparsekit.topk_mask``: no concatenation, one byte for each stored number. Deterministic.
    Source: Aji and Heafield 2017; Lin et al. 2018.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> a, b = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))
    >>> a.grad, b.grad = torch.tensor([1.0, -5.0, 2.0]), torch.tensor([4.0, 0.5])
    >>> sparsekit.torch.topk_gradients_([a, b], k=2)
    >>> a.grad, b.grad
    (tensor([ 0., -5.,  0.]), tensor([4., 0.]))
    """
    found, grads = summed_gradients(parameters)
    for p, grad, mask in zip(found, grads, largest_masks(grads, k, ratio), strict=True):
        values = values_of(grad).masked_fill_(~mask, 0)  # of a sparse gradient: fresh memory
        p.grad = with_values(grad, values, mask)
