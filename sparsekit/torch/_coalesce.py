"""coalesce for torch: of sparse COO tensors, and of indices and values as an operator that autograd and torch.compile know."""

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

import sparsekit
from sparsekit import COO
from sparsekit.torch._convert import check_sparse_coo, from_sparse_tensor


@overload
def coalesce(tensor: Tensor, *, reduce: str = "sum", backend: str | None = None) -> Tensor: ...
@overload
def coalesce(tensor: Tensor, values: Tensor, shape: Sequence[int], *, reduce: str = "sum", backend: str | None = None) -> COO: ...
def coalesce(
    tensor: Tensor,
    values: Tensor | None = None,
    shape: Sequence[int] | None = None,
    *,
    reduce: str = "sum",
    backend: str | None = None,
) -> Tensor | COO:
    """Reduce duplicates, differentiable in the values: ``coalesce(tensor)`` or ``coalesce(indices, values, shape)``.

    Parameters
    ----------
    tensor : sparse COO tensor, on the CPU or a CUDA device
        Any number of sparse and dense dimensions, of any dtype of ``sparsekit.coalesce``. Or, where values and shape follow, the
        indices, (sparse_ndim, nnz) or (nnz,).
    values : tensor, (nnz, *dense_shape), optional
    shape : sequence of int, optional
        Sparse dimensions, then dense ones.
    reduce : {"sum", "mean", "min", "max", "prod"}
        As for ``sparsekit.coalesce``.
    backend : str, optional
        See ``sparsekit.use_backend``.

    Returns
    -------
    sparse COO tensor, or COO
        Coalesced; the tensor is flagged so, and of the COO the values know their graph. The input's flag is not trusted: the data
        are looked at. Always new, never the input.

    Raises
    ------
    TypeError
        Not a sparse COO tensor; it requires grad and ``reduce`` is not "sum" or "mean"; or as ``sparsekit.coalesce``.
    IndexError, ValueError
        As ``sparsekit.coalesce``.

    Notes
    -----
    The gradient, with ``o = inverse[i]`` the output entry of input entry i: for sum ``d_values[i] = d_out[o]``; for mean that
    divided by the number of entries of o; for min and max ``d_out[o]`` shared alike by the entries that attain it, as torch.amax
    does; for prod ``d_out[o]`` times the product of the others. A sparse tensor's gradient has one number for each coordinate, so
    that form is differentiable for sum and mean only. Nothing is made dense.
    ``coalesce(indices, values, shape)`` is the operator ``torch.ops.sparsekit.coalesce``, and so works inside ``torch.compile``.
    Cost and determinism as ``sparsekit.coalesce``: float16 and bfloat16 are accumulated in float32, float32 in float64, and
    rounded once. Source: ``torch.Tensor.coalesce``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> t = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3))
    >>> sparsekit.torch.coalesce(t).values()
    tensor([3., 9.])
    >>> values = torch.tensor([3.0, 4.0, 5.0], requires_grad=True)
    >>> sparsekit.torch.coalesce(torch.tensor([0, 2, 2]), values, (3,)).values.prod().backward()
    >>> values.grad
    tensor([9., 3., 3.])
    """
    if values is None and shape is None:
        return _coalesce_tensor(tensor, reduce, backend)
    if values is None or shape is None:
        raise TypeError("expected a sparse tensor alone, or indices, values and shape")
    shape = tuple(shape)
    out_values, out_indices, _, _ = _coalesce_op(tensor, values, shape, reduce, backend)
    return COO(out_indices, out_values, shape)


@torch.library.custom_op(
    "sparsekit::coalesce",
    mutates_args=(),
    schema="(Tensor indices, Tensor values, SymInt[] shape, str reduce, str? backend) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _coalesce_op(
    indices: Tensor, values: Tensor, shape: Sequence[int], reduce: str, backend: str | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values and indices, coalesced, and the inverse map and counts that their gradient needs."""
    coo, inverse, counts = sparsekit.coalesce(
        indices, values, shape, reduce=reduce, return_inverse=True, return_counts=True, backend=backend
    )
    return coo.values.contiguous(), coo.indices.contiguous(), inverse, counts  # the layout that the fake promises


@_coalesce_op.register_fake
def _(
    indices: Tensor, values: Tensor, shape: Sequence[int], reduce: str, backend: str | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shapes and dtypes alone; the number of output entries is known only once the data are."""
    nnz = torch.library.get_ctx().new_dynamic_size()
    sparse_ndim = indices.shape[0] if indices.dim() == 2 else 1
    is_real_or_complex = values.dtype.is_floating_point or values.dtype.is_complex
    dtype = torch.float64 if reduce == "mean" and not is_real_or_complex else values.dtype
    return (
        values.new_empty((nnz, *values.shape[1:]), dtype=dtype),
        indices.new_empty((sparse_ndim, nnz)),
        indices.new_empty((values.shape[0],), dtype=torch.int64),
        indices.new_empty((nnz,), dtype=torch.int64),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    indices, values, ctx.shape, ctx.reduce, ctx.backend = inputs
    out, _, inverse, counts = output
    kept = {"sum": (), "mean": (counts,), "prod": (indices, values)}.get(ctx.reduce, (values, out))
    ctx.save_for_backward(inverse, *kept)


def _backward(ctx: Any, grad: Tensor, _indices: None, _inverse: None, _counts: None) -> tuple[Tensor | None, ...]:
    inverse, *kept = ctx.saved_tensors
    spread = grad.index_select(0, inverse)
    if ctx.reduce == "mean":
        counts = kept[0].index_select(0, inverse)
        spread = spread / counts.reshape(-1, *[1] * (grad.dim() - 1))
    elif ctx.reduce == "prod":
        spread = spread * _product_of_others(kept[0], kept[1], inverse, ctx).conj()
    elif ctx.reduce != "sum":
        values, out = kept
        attains = values == out.index_select(0, inverse)
        spread = spread * attains / _count(attains, inverse, out)
    return None, spread, None, None, None


def _count(marks: Tensor, inverse: Tensor, out: Tensor) -> Tensor:
    """For each input entry, how many entries of its output entry are marked."""
    counts = torch.zeros(out.shape, dtype=torch.int64, device=out.device).index_add(0, inverse, marks.to(torch.int64))
    return counts.index_select(0, inverse)


def _product_of_others(indices: Tensor, values: Tensor, inverse: Tensor, ctx: Any) -> Tensor:
    """For each entry the product of the others of its coordinate, zeros among them or not."""
    zero = values == 0
    nonzero = values.masked_fill(zero, 1)
    out, _, _, _ = _coalesce_op(indices, nonzero, ctx.shape, "prod", ctx.backend)
    other_nonzeros = out.index_select(0, inverse) / nonzero
    # One other zero stays in the product, since its own derivative is not zero; two make that zero as well.
    zeros = values.masked_fill(~zero, 0)
    other_zero = torch.zeros_like(out).index_add(0, inverse, zeros).index_select(0, inverse) - zeros
    other_zeros = _count(zero, inverse, out) - zero.to(torch.int64)
    factor = torch.where(other_zeros == 1, other_zero, (other_zeros == 0).to(values.dtype))
    product: Tensor = other_nonzeros * factor
    return product


_coalesce_op.register_autograd(_backward, setup_context=_save)


def _coalesce_tensor(tensor: Tensor, reduce: str, backend: str | None) -> Tensor:
    check_sparse_coo(tensor, "tensor")
    if tensor.requires_grad and torch.is_grad_enabled():
        if reduce not in ("sum", "mean"):
            raise TypeError(
                f"for a sparse tensor only reduce='sum' and 'mean' are differentiable, got {reduce!r}; detach it, or call "
                "coalesce(indices, values, shape)"
            )
        reduced: Tensor = _CoalesceTensor.apply(tensor, reduce, backend)  # type: ignore[no-untyped-call]
        return reduced
    coo = sparsekit.coalesce(*from_sparse_tensor(tensor), reduce=reduce, backend=backend)
    return _flagged(*coo)


def _flagged(indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)


class _CoalesceTensor(torch.autograd.Function):
    """The gradient is a sparse tensor too: for sum, both sides stand for the same dense tensor, so it passes unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, reduce: str, backend: str | None) -> Tensor:
        coo, counts = sparsekit.coalesce(*from_sparse_tensor(tensor), reduce=reduce, return_counts=True, backend=backend)
        ctx.is_mean, ctx.shape = reduce == "mean", coo.shape
        ctx.save_for_backward(coo.indices, counts)
        return _flagged(*coo)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if not ctx.is_mean:
            return grads[0], None, None
        indices, counts = ctx.saved_tensors
        at = _flagged(indices, torch.ones(indices.shape[1], *ctx.shape[len(indices) :], device=indices.device), ctx.shape)
        values = grads[0].sparse_mask(at)._values()
        values = values / counts.reshape(-1, *[1] * (values.dim() - 1))
        return _flagged(indices, values, ctx.shape), None, None
