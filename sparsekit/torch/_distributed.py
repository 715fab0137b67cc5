"""Sparse gradients over the processes of torch.distributed: only dense collectives, which every process group has."""

from __future__ import annotations  # not every build of torch has torch.distributed's names

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sparsekit.torch._coalesce import coalesce

_NONE, _DENSE, _BAD = -1, -2, -3  # instead of a number of sparse dimensions: no gradient, a dense one, one that cannot be sent


@dataclass
class Traffic:
    """What one process has handed to collectives, in bytes of payload; how often it crosses the wire is up to them.

    ``sent`` is what it was, ``dense`` what it would have been with every gradient dense.
    """

    sent: int = 0
    dense: int = 0

    def __iadd__(self, other: Traffic) -> Traffic:
        self.sent += other.sent
        self.dense += other.dense
        return self


def sparse_all_reduce_(
    params: Tensor | Iterable[Tensor],
    *,
    op: str = "sum",
    group: dist.ProcessGroup | None = None,
    max_density: float | None = None,
) -> Traffic:
    """Replace the ``.grad`` of each parameter by the sum or mean over all processes, sparse where it is sparse.

    Every process must call it with the same parameters in the same order.

    Parameters
    ----------
    params : parameter or iterable of parameters
        With sparse COO or dense gradients. Where a process has no gradient, it counts as zeros; where no process has one, it
        stays None.
    op : str
        "sum", as torch.distributed.all_reduce, or "mean", as DistributedDataParallel.
    group : ProcessGroup, optional
        The default process group if None.
    max_density : float, optional
        Sparse gradients go as dense ones where the entries of all processes together exceed this share of the parameter's
        rows. None: where that makes fewer bytes, taking both collectives for rings.

    Returns
    -------
    Traffic
        A record of the bytes that this process has contributed, ``sent``, and would have with dense gradients, ``dense``.

    Raises
    ------
    ValueError
        Unknown op, a negative max_density; on every process, if the gradients of one parameter differ in their number of sparse
        dimensions or in their layout, or one does not fit its parameter.
    RuntimeError
        A process has died or does not answer within the group's timeout (from torch.distributed).

    Notes
    -----
    Each process coalesces first; then one all-gather of a few numbers for each parameter, by which all take the same decisions,
    and for each sparse gradient one all-gather of indices and values, padded to the longest, or one dense all-reduce. The result
    has the same bits on every process: entries are summed in the order of ranks, float16 and bfloat16 in float32; it is
    coalesced, with every row that some process named.
    Cost: entries of all processes in memory, or one dense copy. It waits for the collectives.

    Examples
    --------
    >>> import torch, torch.distributed as dist, sparsekit.torch
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> table = torch.nn.Embedding(10, 2, sparse=True)
    >>> table(torch.tensor([3, 3])).sum().backward()
    >>> sparsekit.torch.sparse_all_reduce_(table.parameters(), op="mean")
    Traffic(sent=16, dense=80)
    >>> table.weight.grad.indices()
    tensor([[3]])
    >>> dist.destroy_process_group()
    """
    together = [params] if isinstance(params, Tensor) else list(params)
    results, traffic = reduced([p.grad for p in together], together, op, group, max_density)
    for p, result in zip(together, results, strict=True):
        p.grad = result
    return traffic


@torch.no_grad()
def reduced(
    grads: list[Tensor | None],
    params: list[Tensor],
    op: str,
    group: dist.ProcessGroup | None = None,
    max_density: float | None = None,
) -> tuple[list[Tensor | None], Traffic]:
    """sparse_all_reduce_ of gradients apart from their parameters, which say shapes and dtypes."""
    if op not in ("sum", "mean"):
        raise ValueError(f'op must be "sum" or "mean", got {op!r}')
    if max_density is not None and not max_density >= 0:
        raise ValueError(f"max_density must be >= 0, got {max_density}")
    traffic = Traffic()
    if not params:
        return [], traffic
    problem: Exception | None = None
    mine: list[Tensor | None] = []
    about = []  # (number of sparse dimensions or a code, nnz)
    for grad, p in zip(grads, params, strict=True):
        try:
            prepared = _prepared(grad, p)
            about.append(_description(prepared))
        except (ValueError, TypeError, IndexError, RuntimeError) as error:  # the others wait: tell them, then raise
            prepared, problem = None, problem or error
            about.append([_BAD, 0])
        mine.append(prepared)
    everyone = torch.stack(all_gather(torch.tensor(about, device=params[0].device), group)).cpu()
    if problem is not None:
        raise problem
    kinds = [_agreed(everyone[:, i, 0].tolist(), i, p) for i, p in enumerate(params)]
    results: list[Tensor | None] = []
    for i, (p, grad, kind) in enumerate(zip(params, mine, kinds, strict=True)):
        if kind == _NONE:
            results.append(None)
        elif kind == _DENSE:
            results.append(_dense_sum(torch.zeros_like(p) if grad is None else grad, op, group, traffic))
        else:
            results.append(_sparse_sum(p, grad, kind, everyone[:, i, 1].tolist(), op, group, max_density, traffic))
        traffic.dense += p.numel() * p.dtype.itemsize if kind != _NONE else 0
    return results, traffic


def _sparse_sum(
    p: Tensor,
    grad: Tensor | None,
    sparse_dim: int,
    counts: list[int],
    op: str,
    group: dist.ProcessGroup | None,
    max_density: float | None,
    traffic: Traffic,
) -> Tensor:
    """The sum or mean of coalesced sparse gradients of p, of which the processes have so many entries each."""
    rows, dense_shape = p.shape[:sparse_dim], p.shape[sparse_dim:]
    n_rows, width = rows.numel(), dense_shape.numel()
    if grad is None:
        indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=p.device)
        values = torch.empty(0, *dense_shape, dtype=p.dtype, device=p.device)
    else:
        indices, values = grad._indices(), grad._values()
    wide = torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype
    entry = 8 * sparse_dim + width * p.dtype.itemsize
    dense = n_rows * (width + 1) * wide.itemsize
    # Of rings: an all-gather passes on every part once, an all-reduce everything twice.
    most = 2 * dense / entry if max_density is None else max_density * n_rows
    if (len(counts) * max(counts) if max_density is None else sum(counts)) > most:
        total = torch.zeros(*rows, width + 1, dtype=wide, device=p.device)  # the last column says which rows were named
        if len(values):
            named = values.new_ones(len(values), 1, dtype=wide)
            total[tuple(indices)] = torch.cat([values.reshape(-1, width).to(wide), named], 1)
        dist.all_reduce(total, group=group)
        traffic.sent += total.numel() * total.element_size()
        indices = total[..., -1].nonzero().T
        values = total[tuple(indices)][:, :-1].reshape(-1, *dense_shape)
    else:
        indices, values = _gathered(indices, values, counts, group)
        traffic.sent += max(counts) * entry
        coo = coalesce(torch.sparse_coo_tensor(indices, values.to(wide), p.shape, check_invariants=False))
        indices, values = coo._indices(), coo._values()
    if op == "mean":
        values = values / len(counts)
    return torch.sparse_coo_tensor(indices, values.to(p.dtype), p.shape, is_coalesced=True, check_invariants=False)


def _prepared(grad: Tensor | None, p: Tensor) -> Tensor | None:
    """The gradient as it is sent: coalesced, if it is sparse."""
    if grad is None:
        return None
    if grad.shape != p.shape or grad.dtype != p.dtype:
        raise ValueError(
            f"a gradient must have its parameter's shape and dtype, {tuple(p.shape)} and {p.dtype}, got {tuple(grad.shape)} and "
            f"{grad.dtype}"
        )
    if grad.layout == torch.strided:
        return grad
    if grad.layout != torch.sparse_coo or not grad.is_floating_point():
        raise TypeError(f"expected a dense or sparse COO gradient of real floats, got {grad.layout}, {grad.dtype}")
    return coalesce(grad)


def _description(grad: Tensor | None) -> list[int]:
    if grad is None:
        return [_NONE, 0]
    return [grad.sparse_dim(), grad._nnz()] if grad.is_sparse else [_DENSE, 0]


def _agreed(codes: list[int], number: int, p: Tensor) -> int:
    """What the processes have of a parameter; ValueError on each of them where they cannot go together."""
    where = f"parameter {number} of shape {tuple(p.shape)}"
    if _BAD in codes:
        raise ValueError(f"the gradient of {where} cannot be sent by rank {codes.index(_BAD)}, which raises the reason")
    there = {code for code in codes if code != _NONE}
    if len(there) > 1:
        kinds = [{_NONE: "none", _DENSE: "dense"}.get(code, f"{code} sparse dimensions") for code in codes]
        raise ValueError(f"the gradients of {where} must be of one kind on all ranks, got {', '.join(kinds)}")
    return there.pop() if there else _NONE


def _dense_sum(grad: Tensor, op: str, group: dist.ProcessGroup | None, traffic: Traffic) -> Tensor:
    wide = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype
    total = grad.to(wide, copy=True, memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    traffic.sent += total.numel() * total.element_size()
    if op == "mean":
        total /= dist.get_world_size(group)
    return total.to(grad.dtype)


def all_gather(x: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    """The tensors of all processes, which have one shape."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return parts


def _gathered(indices: Tensor, values: Tensor, counts: list[int], group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Indices and values of all processes, in the order of ranks: as bytes, in one collective, padded to the longest."""
    longest = max(counts)
    if not longest:
        return indices, values
    sparse_dim, entry = indices.shape[0], values.shape[1:].numel() * values.element_size()
    packed = torch.zeros((8 * sparse_dim + entry) * longest, dtype=torch.uint8, device=values.device)
    split = 8 * sparse_dim * longest  # the indices come first: they are aligned then
    packed[: 8 * indices.numel()] = indices.contiguous().view(-1).view(torch.uint8)
    packed[split : split + entry * len(values)] = values.contiguous().view(-1).view(torch.uint8)
    all_indices, all_values = [], []
    for count, part in zip(counts, all_gather(packed, group), strict=True):
        all_indices.append(part[: 8 * sparse_dim * count].view(torch.int64).view(sparse_dim, count))
        all_values.append(part[split : split + entry * count].view(values.dtype).view(count, *values.shape[1:]))
    return torch.cat(all_indices, 1), torch.cat(all_values)
