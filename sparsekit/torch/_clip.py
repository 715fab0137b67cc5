"""Clipping of gradients, dense and sparse together, as torch.nn.utils does for dense ones."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from sparsekit.torch._gradients import summed_gradients, values_of


class _Holder(NamedTuple):
    """All that torch.nn.utils reads of a parameter."""

    grad: Tensor


def total_norm(grads: list[Tensor], norm_type: float, error_if_nonfinite: bool = False, foreach: bool | None = None) -> Tensor:
    """The norm of coalesced gradients as one vector, the zeros that sparse ones do not store included."""
    parts = [values_of(grad) for grad in grads]
    if norm_type == 0:  # torch's total counts the tensors that are not zero
        dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts), torch.float32).to_real()
        return torch.tensor(sum(int(torch.count_nonzero(part)) for part in parts), dtype=dtype)
    if norm_type < 0:
        parts += [part.new_zeros(1) for part, grad in zip(parts, grads, strict=True) if part.numel() < grad.numel()]
    parts = [part for part in parts if part.numel()]
    return get_total_norm(parts, norm_type, error_if_nonfinite, foreach)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients down so that their norm, taken as one vector, is at most ``max_norm``; dense and sparse together.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        Those without a gradient are skipped; one that is named twice counts once.
    max_norm : float
        >= 0.
    norm_type : float
        1, 2, any other p, inf, -inf, or 0 for the number of nonzeros.
    error_if_nonfinite : bool
        Raise where the norm is infinite or NaN; else the gradients are scaled by it, as torch does.
    foreach : bool, optional
        As for torch.nn.utils.clip_grad_norm_.

    Returns
    -------
    tensor
        The norm before clipping.

    Raises
    ------
    RuntimeError
        The norm is not finite, with ``error_if_nonfinite``.
    ValueError, TypeError, IndexError
        max_norm is negative or NaN; as ``coalesce_grads_``. In every case no gradient has been changed.

    Notes
    -----
    ``g *= min(1, max_norm / (norm + 1e-6))``. The norm is that of the coalesced values: duplicates are summed first, and -inf and
    negative p see the zeros that a sparse gradient does not store, so that it has the norm of its dense form. Equals
    torch.nn.utils.clip_grad_norm_ on dense gradients to the bit, but for ``norm_type=0`` over several tensors: torch counts the
    tensors that are not zero.
    Sparse gradients are replaced by coalesced ones, dense ones scaled in place.
    Cost: a coalesce of each sparse gradient, two passes over the values. Source: torch.nn.utils.clip_grad_norm_.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> table = torch.nn.Embedding(5, 2, sparse=True)
    >>> table(torch.tensor([1, 1, 2])).sum().backward()
    >>> sparsekit.torch.clip_grad_norm_(table.parameters(), max_norm=1.0)  # sqrt(4 + 4 + 1 + 1)
    tensor(3.1623)
    """
    max_norm, norm_type = _not_negative(max_norm, "max_norm"), float(norm_type)
    if norm_type != norm_type:
        raise ValueError("norm_type must be a number, got nan")
    found, grads = summed_gradients(parameters)
    total = total_norm(grads, norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(_holders(grads), max_norm, total, foreach)
    for p, grad in zip(found, grads, strict=True):
        p.grad = grad
    return total


@torch.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every gradient to [-clip_value, clip_value]; dense and sparse together, the sums of duplicates.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        Those without a gradient are skipped.
    clip_value : float
        >= 0.
    foreach : bool, optional
        As for torch.nn.utils.clip_grad_value_.

    Raises
    ------
    ValueError, TypeError, IndexError
        clip_value is negative or NaN; a gradient is complex; as ``coalesce_grads_``. No gradient has been changed.

    Notes
    -----
    Sparse gradients are replaced by coalesced ones, dense ones clamped in place. NaN stays.
    Cost: a coalesce of each sparse gradient, one pass. Source: torch.nn.utils.clip_grad_value_.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> table = torch.nn.Embedding(5, 2, sparse=True)
    >>> table(torch.tensor([1, 1, 2])).sum().backward()
    >>> sparsekit.torch.clip_grad_value_(table.parameters(), 1.5)
    >>> table.weight.grad.values()
    tensor([[1.5000, 1.5000],
            [1.0000, 1.0000]])
    """
    clip_value = _not_negative(clip_value, "clip_value")
    found, grads = summed_gradients(parameters)
    for p, grad in zip(found, grads, strict=True):
        if grad.is_complex():
            raise TypeError(
                f"complex numbers have no order: the gradient of the parameter of shape {tuple(p.shape)} is {grad.dtype}"
            )
    torch.nn.utils.clip_grad_value_(_holders(grads), clip_value, foreach)
    for p, grad in zip(found, grads, strict=True):
        p.grad = grad


def _holders(grads: list[Tensor]) -> Any:
    return [_Holder(values_of(grad)) for grad in grads]


def _not_negative(number: float, name: str) -> float:
    number = float(number)
    if not number >= 0:
        raise ValueError(f"{name} must be >= 0, got {number}")
    return number
