"""Communication hooks for DistributedDataParallel: sparse gradients kept sparse, dense ones as Top-K with error feedback."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

import sparsekit
from sparsekit.torch._distributed import Traffic, all_gather, reduced

if TYPE_CHECKING or dist.is_available():  # DistributedDataParallel looks at a hook's annotations
    from torch._C._distributed_c10d import GradBucket, ProcessGroup
else:
    GradBucket = ProcessGroup = Any


def sparse_hook(state: ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Mean over all processes: sparse gradients by ``sparse_all_reduce_``, which stays sparse, dense ones by an all-reduce.

    Parameters
    ----------
    state : ProcessGroup, optional
        None is the default process group.
    bucket : GradBucket
        From DistributedDataParallel.

    Returns
    -------
    Future
        Of the bucket's reduced gradient.

    Raises
    ------
    ValueError, RuntimeError
        In ``backward``, as ``sparse_all_reduce_``.

    Notes
    -----
    Needs no sparse collective of the process group, which NCCL does not have. Cost: of a sparse gradient as
    ``sparse_all_reduce_``; backward waits for it. Deterministic for sparse gradients; else as the process group.

    Examples
    --------
    In a script that torchrun starts (the tests run the README's in processes of their own):

    >>> ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.EmbeddingBag(10, 2, sparse=True))  # doctest: +SKIP
    >>> ddp.register_comm_hook(None, sparsekit.torch.sparse_hook)  # doctest: +SKIP
    """
    buffer = bucket.buffer()
    if not buffer.is_sparse:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(state, bucket)  # type: ignore[arg-type]  # None is the default group, it says
    return _done(_mean(buffer, state, Traffic()))


class TopKState:
    """What ``topk_hook`` keeps: its options, the residual of every parameter, the bytes sent.

    Parameters
    ----------
    params : iterable of parameters
        Of the model, in a fixed order; residuals are kept, and saved, by their numbers in it.
    ratio : float
        The share of a bucket's dense coordinates that is sent, in (0, 1]; at least one.
    error_feedback : bool
        Add what was not sent to the next gradient.
    group : ProcessGroup, optional
        None is the default process group.

    Raises
    ------
    ValueError
        ratio out of range.

    Notes
    -----
    ``bytes_sent`` counts the payload that this process has handed to collectives, ``bytes_dense`` what it would have been with
    dense gradients.
    Memory: a residual of each dense parameter's size; float32 for 16-bit parameters. ``state_dict`` and pickles hold everything
    but the process group.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> state = sparsekit.torch.TopKState(torch.nn.Linear(4, 2).parameters(), ratio=0.25)
    >>> state.bytes_sent
    0
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        ratio: float,
        *,
        error_feedback: bool = True,
        group: ProcessGroup | None = None,
    ) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio must be > 0 and <= 1, got {ratio}")
        self.params = list(params)
        self._numbers = {p: number for number, p in enumerate(self.params)}
        self.ratio = ratio
        self.error_feedback = error_feedback
        self.group = group
        self.traffic = Traffic()
        self.residuals: dict[int, Tensor] = {}

    @property
    def bytes_sent(self) -> int:
        return self.traffic.sent

    @property
    def bytes_dense(self) -> int:
        return self.traffic.dense

    def number_of(self, p: Tensor) -> int:
        if p not in self._numbers:
            raise ValueError(f"TopKState was not given the parameter of shape {tuple(p.shape)} that is to be reduced")
        return self._numbers[p]

    def state_dict(self) -> dict[str, Any]:
        """Residuals of this process by the number of the parameter, options and bytes; plain containers and tensors."""
        return {
            "residuals": dict(self.residuals),
            "ratio": self.ratio,
            "error_feedback": self.error_feedback,
            "bytes": [self.traffic.sent, self.traffic.dense],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave on this process.

        Raises
        ------
        ValueError
            A residual does not fit its parameter. Nothing has been loaded then.
        """
        for number, residual in state_dict["residuals"].items():
            if number >= len(self.params) or residual.shape != self.params[number].shape:
                shape = tuple(self.params[number].shape) if number < len(self.params) else "no such parameter"
                raise ValueError(f"the residual of parameter {number} must have its shape, {shape}, got {tuple(residual.shape)}")
        self.residuals = {
            number: residual.to(self.params[number].device, copy=True) for number, residual in state_dict["residuals"].items()
        }
        self.ratio, self.error_feedback = state_dict["ratio"], state_dict["error_feedback"]
        self.traffic = Traffic(*state_dict["bytes"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "group": None}


def topk_hook(state: TopKState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Mean over all processes of what each sends: the largest coordinates of dense gradients; sparse ones as ``sparse_hook``.

    Parameters
    ----------
    state : TopKState
        One for the model.
    bucket : GradBucket
        From DistributedDataParallel.

    Returns
    -------
    Future
        Of the bucket's reduced gradient: dense, zero where no process has sent anything.

    Raises
    ------
    ValueError, RuntimeError
        In ``backward``: a parameter that the state does not know; as ``sparse_all_reduce_``.

    Notes
    -----
    accumulated = gradient + residual; the k largest magnitudes of the accumulated gradients of the bucket's parameters are sent;
    residual = accumulated - own sent values; the result is the sum of all sent values over the number of processes, in the order
    of ranks, the same bits everywhere. A hook sees one bucket at a time, so that the choice is over a bucket, not over the
    network; ``bucket_cap_mb`` of DistributedDataParallel sets how much that is. NaN and infinity are sent first, and leave 0 in
    the residual.
    Cost: k positions and values a process; backward waits for them.
    Source: Aji and Heafield 2017 (sparsification with residuals); Lin et al. 2018.

    Examples
    --------
    In a script that torchrun starts (the tests run the README's in processes of their own):

    >>> ddp = torch.nn.parallel.DistributedDataParallel(model)  # doctest: +SKIP
    >>> state = sparsekit.torch.TopKState(model.parameters(), ratio=0.01)  # doctest: +SKIP
    >>> ddp.register_comm_hook(state, sparsekit.torch.topk_hook)  # doctest: +SKIP
    """
    buffer = bucket.buffer()
    if buffer.is_sparse:
        return _done(_mean(buffer, state.group, state.traffic))
    with torch.no_grad():
        numbers = [state.number_of(p) for p in bucket.parameters()]
        wide = torch.float32 if buffer.dtype in (torch.float16, torch.bfloat16) else buffer.dtype
        sums = [gradient.to(wide, copy=True) for gradient in bucket.gradients()]
        if state.error_feedback:
            for total, number in zip(sums, numbers, strict=True):
                if number in state.residuals:
                    total += state.residuals[number]
        k = math.ceil(state.ratio * sum(total.numel() for total in sums))
        chosen = sparsekit.topk([total.view(-1) for total in sums], k)
        starts = torch.tensor([0, *(total.numel() for total in sums)]).cumsum(0).tolist()
        positions = torch.cat([part.indices[0] + start for part, start in zip(chosen, starts, strict=False)])
        values = torch.cat([part.values for part in chosen]).to(buffer.dtype)
        narrow = positions.to(torch.int32 if starts[-1] < 2**31 else torch.int64)
        result = torch.zeros(starts[-1], dtype=wide, device=buffer.device)
        for where, what in zip(all_gather(narrow, state.group), all_gather(values, state.group), strict=True):
            result.index_add_(0, where.long(), what.to(wide))
        if state.error_feedback:  # now that it is sent
            for total, part, number in zip(sums, chosen, numbers, strict=True):
                rest = part.values - part.values.to(buffer.dtype).to(wide)
                total.view(-1)[part.indices[0]] = torch.where(torch.isfinite(rest), rest, 0)
                state.residuals[number] = total
        state.traffic += Traffic(
            narrow.numel() * narrow.element_size() + values.numel() * values.element_size(),
            buffer.numel() * buffer.element_size(),
        )
        return _done((result / dist.get_world_size(state.group)).to(buffer.dtype))


def _mean(buffer: Tensor, group: ProcessGroup | None, traffic: Traffic) -> Tensor:
    (result,), used = reduced([buffer], [buffer], "mean", group)
    traffic += used
    assert result is not None  # the buffer is a gradient
    return result


def _done(result: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(result)
    return future
