"""The gradients of many parameters, dense and sparse together: coalesced, accumulated, unscaled, checked."""

from collections.abc import Iterable

import torch
from torch import Tensor

import sparsekit
from sparsekit.torch._coalesce import coalesce
from sparsekit.torch._convert import from_sparse_tensor


def summed_gradients(parameters: Tensor | Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that have a gradient, each once, and their gradients: sparse ones coalesced anew, dense ones as they are.

    Everything is checked, and nothing written.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for i, p in enumerate(parameters):
        if not isinstance(p, Tensor):
            raise TypeError(f"parameters[{i}] must be a tensor, got {type(p).__name__}")
    found = list({id(p): p for p in parameters if p.grad is not None}.values())
    grads = [p.grad for p in found if p.grad is not None]
    for p, grad in zip(found, grads, strict=True):
        _check_gradient(grad, f"the gradient of the parameter of shape {tuple(p.shape)}")
    return found, [coalesce(grad.detach()) if grad.is_sparse else grad for grad in grads]


def values_of(grad: Tensor) -> Tensor:
    """The numbers that a gradient stores, as a strided tensor on its memory."""
    return grad._values() if grad.is_sparse else grad


def added(a: Tensor | None, b: Tensor) -> Tensor:
    """a + b, new: sparse and coalesced if both are sparse, else dense."""
    if a is None:
        return coalesce(b.detach()) if b.is_sparse else b.detach().clone()
    if a.is_sparse and b.is_sparse:
        indices, values, shape = sparsekit.add(from_sparse_tensor(a), from_sparse_tensor(b))
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
    dense, other = (b, a) if a.is_sparse else (a, b)
    return dense.detach() + (coalesce(other.detach()) if other.is_sparse else other)


def _check_gradient(grad: Tensor, name: str) -> None:
    if grad.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(f"{name} must be dense or sparse COO, got layout {grad.layout}")
    if grad.layout == torch.strided and any(n > 1 and step == 0 for n, step in zip(grad.shape, grad.stride(), strict=True)):
        raise ValueError(f"{name} is written in place and its elements must not share memory, got strides {grad.stride()}")


@torch.no_grad()
def coalesce_grads_(parameters: Tensor | Iterable[Tensor]) -> None:
    """Sum the duplicates in every sparse gradient; dense gradients stay as they are.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        Those without a gradient are skipped.

    Raises
    ------
    IndexError, TypeError, ValueError
        A gradient names a row that its parameter does not have, or is neither dense nor sparse COO. No gradient has been changed.

    Notes
    -----
    ``.grad`` is replaced, as by torch.amp.GradScaler. After each micro-batch it keeps an accumulated gradient at the number of
    distinct rows; as a hook, ``p.register_post_accumulate_grad_hook(coalesce_grads_)``, it does so by itself.
    Before ``GradScaler.unscale_`` it lets the scaler see a sum that overflows where no duplicate does.
    Cost and determinism: ``sparsekit.coalesce``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> table = torch.nn.Embedding(5, 2, sparse=True)
    >>> table(torch.tensor([1, 1, 2])).sum().backward()
    >>> sparsekit.torch.coalesce_grads_(table.parameters())
    >>> table.weight.grad.indices(), table.weight.grad.values()
    (tensor([[1, 2]]), tensor([[2., 2.],
            [1., 1.]]))
    """
    for p, grad in zip(*summed_gradients(parameters), strict=True):
        p.grad = grad


@torch.no_grad()
def accumulate_grad_(parameter: Tensor, grad: Tensor) -> None:
    """Add a gradient to ``parameter.grad``; a sparse one is coalesced, so that it holds each row once however often it is called.

    Parameters
    ----------
    parameter : dense tensor
        Its ``.grad`` may be None, dense or sparse; it is replaced.
    grad : dense or sparse COO tensor
        Of the parameter's shape, dtype and device. Never written to, nor shared with ``.grad``.

    Raises
    ------
    TypeError, ValueError, IndexError
        They do not fit, or name a row that the parameter does not have. ``.grad`` is as it was.

    Notes
    -----
    Sparse if both are sparse, else dense. Cost: one ``sparsekit.add``. For gradients that ``backward`` accumulates by itself, see
    ``coalesce_grads_``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> weight = torch.nn.Parameter(torch.zeros(4))
    >>> for rows in ([1, 1], [3, 1]):
    ...     sparsekit.torch.accumulate_grad_(weight, torch.sparse_coo_tensor([rows], torch.ones(2), (4,)))
    >>> weight.grad.indices(), weight.grad.values()
    (tensor([[1, 3]]), tensor([3., 1.]))
    """
    for x, name in ((parameter, "parameter"), (grad, "grad")):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    for given, name in ((grad, "grad"), (parameter.grad, "parameter.grad")):
        if given is not None and given.layout not in (torch.strided, torch.sparse_coo):
            raise TypeError(f"{name} must be dense or sparse COO, got layout {given.layout}")
    if grad.shape != parameter.shape or grad.dtype != parameter.dtype or grad.device != parameter.device:
        raise ValueError(
            f"grad must have the parameter's shape, dtype and device {tuple(parameter.shape)}, {parameter.dtype}, "
            f"{parameter.device}, got {tuple(grad.shape)}, {grad.dtype}, {grad.device}"
        )
    parameter.grad = added(parameter.grad, grad)


@torch.no_grad()
def grads_are_finite(parameters: Tensor | Iterable[Tensor]) -> bool:
    """Whether every gradient is free of infinity and NaN, the sums of duplicates included; nothing is changed.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        Those without a gradient are skipped.

    Returns
    -------
    bool

    Raises
    ------
    IndexError, TypeError, ValueError
        As ``coalesce_grads_``.

    Notes
    -----
    Cost: a coalesce of each sparse gradient. float16 duplicates of 60000, finite each, have a sum that is not.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
    >>> weight.grad = torch.sparse_coo_tensor([[0, 0]], torch.full((2,), 60000.0, dtype=torch.float16), (4,))
    >>> sparsekit.torch.grads_are_finite([weight])
    False
    """
    _, grads = summed_gradients(parameters)
    return _all_finite(grads)


@torch.no_grad()
def unscale_grads_(parameters: Tensor | Iterable[Tensor], scale: float | Tensor) -> bool:
    """Coalesce the sparse gradients, divide every gradient by the scale, and tell whether all are finite.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        Those without a gradient are skipped.
    scale : float or 1-element tensor
        What the loss was multiplied by, > 0; ``GradScaler.get_scale()``.

    Returns
    -------
    bool
        False if a gradient holds infinity or NaN, the sums of duplicates included: then the step is to be skipped.

    Raises
    ------
    IndexError, TypeError, ValueError
        As ``coalesce_grads_``; the scale is not finite and > 0. No gradient has been changed.

    Notes
    -----
    For training loops that scale the loss themselves, and for 16-bit gradients, which torch.amp.GradScaler refuses. With a
    GradScaler on float32 parameters: ``scaler.scale(loss).backward()``, ``coalesce_grads_(parameters)``,
    ``scaler.unscale_(optimizer)``, ``scaler.step(optimizer)``, ``scaler.update()``.
    Sparse gradients are replaced, dense ones changed in place. Cost: a coalesce, and two passes. Source: GradScaler.unscale_.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> weight = torch.nn.Parameter(torch.zeros(4))
    >>> (weight.sum() * 1024).backward()
    >>> sparsekit.torch.unscale_grads_([weight], 1024.0)
    True
    >>> weight.grad
    tensor([1., 1., 1., 1.])
    """
    factor = float(scale)
    if not 0.0 < factor < float("inf"):
        raise ValueError(f"scale must be finite and > 0, got {factor}")
    found, grads = summed_gradients(parameters)
    finite = _all_finite(grads)
    for p, grad in zip(found, grads, strict=True):
        values_of(grad).mul_(1 / factor)
        p.grad = grad
    return finite


def _all_finite(grads: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(values_of(grad)).all()) for grad in grads)
