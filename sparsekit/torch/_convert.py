"""torch tensors as NumPy arrays on the same memory, and back; sparse COO tensors as COO, and back."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from sparsekit import COO


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Adapter:
    """What the core asks of an array library (``sparsekit._dlpack.Adapter``)."""

    library = "torch"

    def device(self, x: Tensor) -> str:
        return x.device.type

    def to_numpy(self, x: Tensor) -> tuple[np.ndarray[Any, Any], str]:
        if x.layout != torch.strided:
            raise TypeError(
                f"expected a tensor of layout torch.strided, got {x.layout}; for a sparse COO tensor use "
                "sparsekit.torch.coalesce or sparsekit.COO.from_torch"
            )
        # NumPy has neither autograd nor the lazy conjugate and negative bits.
        x = x.detach()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
        if x.dtype == torch.bfloat16:  # unknown to NumPy, so it travels as bits
            return np.from_dlpack(x.view(torch.int16)).view(np.uint16), "bfloat16"
        try:
            return np.from_dlpack(x), _name(x.dtype)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"NumPy cannot hold a tensor of dtype {x.dtype}: {error}") from error

    def from_numpy(self, a: np.ndarray[Any, Any], dtype: str) -> Tensor:
        if dtype == "bfloat16":
            return from_dlpack(a.view(np.int16)).view(torch.bfloat16)
        return from_dlpack(a)

    def wrote(self, x: Tensor) -> None:
        # Autograd must know, or a graph that saved the old value would give a wrong gradient instead of an error.
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)


adapter = _Adapter()


def check_sparse_coo(tensor: Any, name: str) -> None:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.sparse_coo:
        got = f"layout {tensor.layout}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name} must be a torch sparse COO tensor, got {got}")


def from_sparse_tensor(tensor: Tensor) -> COO:
    """The indices and values of a torch sparse COO tensor, without a copy.

    Parameters
    ----------
    tensor : sparse COO tensor
        Coalesced or not; duplicates are kept.

    Returns
    -------
    COO
        torch tensors that share the tensor's memory; the values are detached from autograd.

    Raises
    ------
    TypeError
        Not a sparse COO tensor.

    Notes
    -----
    Cost: none. Same as ``COO.from_torch``.

    Examples
    --------
    >>> import torch, sparsekit.torch
    >>> sparsekit.torch.from_sparse_tensor(torch.eye(2).to_sparse()).values
    tensor([1., 1.])
    """
    check_sparse_coo(tensor, "tensor")
    tensor = tensor.detach()
    return COO(tensor._indices(), tensor._values(), tuple(tensor.shape))


def _from_numpy(a: np.ndarray[Any, Any]) -> Tensor:
    return adapter.from_numpy(a, a.dtype.name)  # ml_dtypes' bfloat16 too


def to_sparse_tensor(coo: COO) -> Tensor:
    """A COO as a torch sparse COO tensor, duplicates kept, values shared.

    Parameters
    ----------
    coo : COO
        Of NumPy arrays or torch tensors.

    Returns
    -------
    sparse COO tensor
        With int64 indices, as torch has them; torch takes it for uncoalesced.

    Raises
    ------
    IndexError, TypeError, ValueError
        As ``sparsekit.coalesce``; torch refuses a shape whose product passes 2**63.

    Notes
    -----
    Cost: O(nnz) for the check of the indices. Same as ``COO.to_torch``.

    Examples
    --------
    >>> import numpy as np, sparsekit.torch
    >>> sparsekit.torch.to_sparse_tensor(sparsekit.COO(np.array([[1]]), np.array([2.0]), (3,))).to_dense()
    tensor([0., 2., 0.], dtype=torch.float64)
    """
    indices, values = (x if isinstance(x, Tensor) else _from_numpy(np.asarray(x)) for x in (coo.indices, coo.values))
    if indices.dim() == 1:
        indices = indices[None]
    return torch.sparse_coo_tensor(indices.to(torch.int64), values, coo.shape, check_invariants=True)
