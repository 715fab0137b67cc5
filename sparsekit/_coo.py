"""COO: coordinates, values and shape, and its conversions."""

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsekit import _validate
from sparsekit._dlpack import import_array, namespace, on_device_of
from sparsekit._protocol import Array

if TYPE_CHECKING:
    from sparsekit._dlpack import Raw


@dataclass(frozen=True, eq=False)
class COO:
    """Sparse array as coordinates and values; unpacks like the tuple ``(indices, values, shape)``.

    Parameters
    ----------
    indices : integer array, (sparse_ndim, nnz) or (nnz,)
        Coordinates of the entries; duplicates are allowed.
    values : array, (nnz, *dense_shape)
        One value, or block of values, for each coordinate.
    shape : tuple of int
        Sparse dimensions, then dense ones (torch's hybrid layout).

    Notes
    -----
    A plain record: nothing is checked or copied when it is made; the functions that take it check it. Arrays of any library.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> coo = sparsekit.COO(np.array([[0, 1, 1], [2, 0, 0]]), np.array([3, 4, 5]), (2, 3))
    >>> indices, values, shape = sparsekit.coalesce(*coo)
    >>> values
    array([3, 9])
    >>> coo.to_dense()
    array([[0, 0, 3],
           [9, 0, 0]])
    """

    indices: Any
    values: Any
    shape: tuple[int, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.indices, self.values, self.shape))

    @property
    def nnz(self) -> int:
        """Number of stored entries, explicit zeros and duplicates included."""
        return int(self.values.shape[0])

    @property
    def sparse_ndim(self) -> int:
        """Number of sparse dimensions."""
        return int(self.indices.shape[0]) if len(self.indices.shape) == 2 else 1

    @property
    def dense_ndim(self) -> int:
        """Number of dense dimensions."""
        return len(self.values.shape) - 1

    @property
    def ndim(self) -> int:
        """Number of dimensions, sparse and dense."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The values' dtype, of their own library."""
        return self.values.dtype

    @on_device_of("self.values")
    def to_dense(self) -> Any:
        """The dense array of ``shape``, duplicates summed.

        Returns
        -------
        array
            Of the values' library and dtype.

        Raises
        ------
        IndexError, TypeError, ValueError
            As ``coalesce``.
        MemoryError
            The dense array does not fit.

        Notes
        -----
        Cost: a coalesce plus O(product(shape)) memory. Deterministic, as ``coalesce``.

        Examples
        --------
        >>> import numpy as np, sparsekit
        >>> sparsekit.COO(np.array([1, 1]), np.array([2.0, 3.0]), (3,)).to_dense()
        array([0., 5., 0.])
        """
        from sparsekit._coalesce import coalesce

        indices, values, shape = coalesce(*self)
        raw = import_array(values, "values")
        if math.prod(shape) * raw.array.itemsize >= 2**63:
            raise MemoryError(f"a dense array of shape {shape} and dtype {raw.dtype} exceeds the address space")
        dense = namespace(raw.array).zeros(shape, raw.array.dtype)
        where = import_array(indices, "indices").array
        if len(where):
            dense[tuple(where[axis] for axis in range(len(where)))] = raw.array
        elif len(raw.array):  # no sparse dimension: one entry, or none
            dense[...] = raw.array[0]
        return raw.adapter.wrap(dense, raw.dtype)

    @classmethod
    @on_device_of("x")
    def from_dense(cls, x: Any, *, sparse_ndim: int | None = None) -> "COO":
        """The entries of a dense array that hold any nonzero, coalesced.

        Parameters
        ----------
        x : array
            Any dtype of ``coalesce``.
        sparse_ndim : int, optional
            How many leading dimensions become sparse, 0 <= sparse_ndim <= x.ndim; all by default. The rest stay dense: a
            block of them is stored if any of its elements is nonzero (not: if its sum is), NaN included.

        Returns
        -------
        COO
            int64 indices; values in x's library and dtype. -0.0 alone counts as zero.

        Raises
        ------
        TypeError, ValueError
            No array or no such dtype; sparse_ndim out of range.

        Notes
        -----
        Cost: one pass over x, and a bool for each sparse position; on a CUDA device a wait for the number of entries.
        Deterministic.

        Examples
        --------
        >>> import numpy as np, sparsekit
        >>> sparsekit.COO.from_dense(np.array([0, 5, 0, 0, 9])).indices
        array([[1, 4]])
        """
        raw = import_array(x, "x")
        _validate.check_value_dtype(raw, "x")
        a = raw.array
        depth = a.ndim if sparse_ndim is None else _validate.integer(sparse_ndim, "sparse_ndim")
        if not 0 <= depth <= a.ndim:
            raise ValueError(f"sparse_ndim must lie between 0 and {a.ndim}, the number of dimensions of x; got {depth}")
        xp, occupied = namespace(a), _is_nonzero(raw)
        if depth < a.ndim:
            occupied = xp.any(occupied, axis=tuple(range(depth, a.ndim)))
        if depth:
            where = xp.nonzero(occupied)  # on a device: waits for the number
            indices, values = xp.stack(where).astype(np.int64, copy=False), a[where]
        else:
            entries = int(occupied)  # as above
            indices, values = xp.empty((0, entries), np.int64), a[None][:entries].copy()
        return cls(raw.adapter.wrap(indices, "int64"), raw.adapter.wrap(_validate.native(values), raw.dtype), a.shape)

    @classmethod
    def from_rows(cls, x: Any) -> "COO":
        """The rows of a dense array that hold any nonzero: a mostly-zero dense gradient as a sparse one.

        Parameters
        ----------
        x : array, (n, *dense_shape)
            At least one dimension.

        Returns
        -------
        COO
            indices (1, rows), values (rows, *dense_shape). The row [1, -1] is kept: rows are tested by any(row != 0).

        Raises
        ------
        TypeError, ValueError
            As ``from_dense``; x has no dimension.

        Notes
        -----
        Cost: one pass over x. Deterministic. Same as ``from_dense(x, sparse_ndim=1)``.

        Examples
        --------
        >>> import numpy as np, sparsekit
        >>> sparsekit.COO.from_rows(np.array([[0., 0.], [1., -1.], [0., 0.]])).indices
        array([[1]])
        """
        return cls.from_dense(x, sparse_ndim=1)

    def to_scipy(self) -> Any:
        """As ``scipy.sparse.coo_array`` with the same entries, duplicates kept.

        Raises
        ------
        TypeError, ValueError
            scipy has no dense dimensions, no bfloat16 or float16, and arrays of other libraries must be on the CPU.

        Notes
        -----
        Cost: the values are shared where possible, not copied. Needs scipy.

        Examples
        --------
        >>> import numpy as np, sparsekit
        >>> sparsekit.COO(np.array([[0, 0], [1, 1]]), np.array([2, 3]), (2, 2)).to_scipy().toarray()
        array([[0, 5],
               [0, 0]])
        """
        triplet = _validate.as_triplet(*self)
        if triplet.device != "cpu":
            raise TypeError(f"scipy.sparse holds arrays on the CPU, got arrays on {triplet.device}; copy them there first")
        if triplet.dense_shape or not triplet.dims:
            raise ValueError(
                f"scipy.sparse holds scalars at one or more sparse dimensions, got {len(triplet.dims)} sparse and "
                f"{len(triplet.dense_shape)} dense dimensions"
            )
        if triplet.dtype in ("float16", "bfloat16"):
            raise TypeError(f"scipy.sparse does not support {triplet.dtype}; convert the values to float32 first")
        _validate.check_index_range(triplet.indices, triplet.dims)
        sparse = importlib.import_module("scipy.sparse")
        return sparse.coo_array((_validate.native(triplet.values), tuple(triplet.indices)), shape=triplet.dims)

    @classmethod
    def from_scipy(cls, matrix: Any) -> "COO":
        """From any ``scipy.sparse`` array or matrix; entries, duplicates and explicit zeros are kept as they are stored.

        Returns
        -------
        COO
            NumPy arrays; indices in scipy's index dtype.

        Raises
        ------
        TypeError
            Not a scipy sparse array.

        Notes
        -----
        Cost: O(nnz). Not coalesced: CSR is in row order but may hold duplicates.

        Examples
        --------
        >>> import scipy.sparse, sparsekit
        >>> sparsekit.COO.from_scipy(scipy.sparse.csr_array([[0, 7], [0, 0]])).values
        array([7])
        """
        if not importlib.import_module("scipy.sparse").issparse(matrix):
            raise TypeError(f"expected a scipy.sparse array or matrix, got {type(matrix).__name__}")
        coo = matrix.tocoo()
        # coo_array has coords for any number of dimensions; the old coo_matrix too since scipy 1.13.
        return cls(np.stack(coo.coords), coo.data, tuple(int(d) for d in coo.shape))

    def to_torch(self) -> Any:
        """As a torch sparse COO tensor, duplicates kept; indices become int64, values are shared, not copied.

        Raises
        ------
        IndexError, TypeError, ValueError
            As ``coalesce``; torch refuses a shape whose product passes 2**63.

        Notes
        -----
        Cost: O(nnz) for the check of the indices. Needs torch. From NumPy arrays the tensor shares their memory.

        Examples
        --------
        >>> import numpy as np, sparsekit
        >>> coo = sparsekit.COO(np.array([[0, 1], [1, 0]]), np.array([2.0, 3.0]), (2, 2))
        >>> coo.to_torch().is_sparse
        True
        """
        return importlib.import_module("sparsekit.torch").to_sparse_tensor(self)

    @classmethod
    def from_torch(cls, tensor: Any) -> "COO":
        """From a torch sparse COO tensor: its own indices and values, duplicates included, without a copy.

        Raises
        ------
        TypeError
            Not a torch sparse COO tensor.

        Notes
        -----
        Cost: none. The values are detached from autograd. Needs torch.

        Examples
        --------
        >>> import torch, sparsekit
        >>> sparsekit.COO.from_torch(torch.eye(2).to_sparse()).indices
        tensor([[0, 1],
                [0, 1]])
        """
        coo: COO = importlib.import_module("sparsekit.torch").from_sparse_tensor(tensor)
        return coo


def _is_nonzero(raw: "Raw") -> Array:
    # bfloat16 arrives as bits: all but the sign.
    bits = raw.array & 0x7FFF if raw.dtype == "bfloat16" else raw.array
    marks: Array = namespace(bits).not_equal(bits, 0)
    return marks
