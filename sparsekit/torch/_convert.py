"""torch tensors as arrays of NumPy or CuPy on the same memory, and back; sparse COO tensors as COO, and back."""

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import sparsekit
from sparsekit import COO


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Adapter:
    """What the core asks of an array library (``sparsekit._dlpack.Adapter``)."""

    library = "torch"

    def device(self, x: Tensor) -> str:
        device = x.device
        return device.type if device.index is None else f"{device.type}:{device.index}"

    def unwrap(self, x: Tensor) -> tuple[Any, str]:
        if x.layout != torch.strided:
            raise TypeError(
                f"expected a tensor of layout torch.strided, got {x.layout}; for a sparse COO tensor use "
                "sparsekit.torch.coalesce or sparsekit.COO.from_torch"
            )
        # NumPy has neither autograd nor the lazy conjugate and negative bits.
        x = x.detach()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
        library = _cupy() if x.is_cuda else np
        if x.dtype == torch.bfloat16:  # unknown to NumPy, so it travels as bits
            return library.from_dlpack(x.view(torch.int16)).view(np.uint16), "bfloat16"
        try:
            return library.from_dlpack(x), _name(x.dtype)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"{library.__name__} cannot hold a tensor of dtype {x.dtype}: {error}") from error

    def wrap(self, a: Any, dtype: str) -> Tensor:
        if dtype == "bfloat16":
            return from_dlpack(a.view(np.int16)).view(torch.bfloat16)
        return from_dlpack(a)

    @contextlib.contextmanager
    def context(self, x: Tensor) -> Iterator[None]:
        """torch's current stream becomes CuPy's: kernels follow torch's own in order, memory goes over without an event."""
        cuda, number = _cupy().cuda, x.device.index  # from here on runs on machines with CUDA only
        with cuda.Device(number), cuda.Stream.from_external(_Stream(torch.cuda.current_stream(number).cuda_stream)):
            yield

    def wrote(self, x: Tensor) -> None:
        # Autograd must know, or a graph that saved the old value would give a wrong gradient instead of an error.
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)


class _Stream(NamedTuple):
    """A stream as CuPy takes over others'. (torch's own class does so itself only in newer versions.)"""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer  # version of this protocol, cudaStream_t


adapter = _Adapter()


@functools.cache
def _cupy() -> Any:
    """CuPy, which holds CUDA tensors for the backend."""
    with sparsekit.use_backend("cupy"):  # else its error, which says what to install
        return importlib.import_module("cupy")


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


def _as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    a = x if hasattr(x, "__dlpack__") else np.asarray(x)
    return adapter.wrap(a, a.dtype.name)  # ml_dtypes' bfloat16 too


def to_sparse_tensor(coo: COO) -> Tensor:
    """A COO as a torch sparse COO tensor, duplicates kept, values shared.

    Parameters
    ----------
    coo : COO
        Of arrays of any library, or torch tensors.

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
    indices, values = (_as_tensor(x) for x in (coo.indices, coo.values))
    if indices.dim() == 1:
        indices = indices[None]
    return torch.sparse_coo_tensor(indices.to(torch.int64), values, coo.shape, check_invariants=True)
