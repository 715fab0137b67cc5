"""coalesce and is_coalesced: checks, then the backend."""

from typing import Any

import numpy as np

from sparsekit import _validate
from sparsekit._coo import COO
from sparsekit._dlpack import import_array, on_device_of
from sparsekit._protocol import REDUCTIONS
from sparsekit._registry import select


@on_device_of("indices")
def coalesce(
    indices: Any,
    values: Any,
    shape: Any,
    *,
    reduce: str = "sum",
    return_inverse: bool = False,
    return_counts: bool = False,
    check: bool = True,
    backend: str | None = None,
) -> Any:
    """Reduce the values of duplicate coordinates; the result has unique coordinates in row-major order.

    Parameters
    ----------
    indices : integer array, (sparse_ndim, nnz) or (nnz,)
        Coordinates, of any integer dtype, in any order. A 1-D array counts as one sparse dimension.
    values : array, (nnz, *dense_shape)
        bool, int8 ... uint64, float16, bfloat16, float32, float64, complex64 or complex128.
    shape : sequence of int
        Sparse dimensions, then dense ones. Their product may pass 2**63; each is at most 2**63 - 1.
    reduce : {"sum", "mean", "min", "max", "prod"}
        float16 and bfloat16 are accumulated in float32, float32 in float64, complex64 in complex128, and rounded once; integers
        wrap in their own dtype; for bool, sum and max are "or", prod and min "and". mean of integers and bool gives float64, as
        numpy.mean. min and max propagate NaN.
    return_inverse, return_counts : bool
        Also return, for each input entry, its output entry (int64, (nnz,)); for each output entry, the number of its input
        entries (int64, (nnz_out,)). The gradient of a sum is ``d_values[i] = d_out[inverse[i]]``.
    check : bool
        Check that every index lies in its dimension. Without, an index out of range gives an undefined result.
    backend : str, optional
        See ``use_backend``.

    Returns
    -------
    COO, or tuple (COO, inverse), (COO, counts), (COO, inverse, counts)
        indices ``(sparse_ndim, nnz_out)`` in the input's index dtype, values ``(nnz_out, *dense_shape)``. Explicit zeros are
        kept. Arrays of the input's library (torch tensors are detached from autograd), always fresh: never views of the input.

    Raises
    ------
    IndexError
        An index is negative or beyond its dimension; names the dimension, the position and the value.
    ValueError, TypeError
        Shapes that do not fit; a dtype, reduce or backend that does not exist; arrays of several libraries.

    Notes
    -----
    Cost: O(nnz) for keys of bounded length (radix sort) on ``numba``, O(nnz log nnz) on ``scipy``; O(nnz) extra memory.
    On a CUDA device the call waits once, for the number of results, and returns before they are there.
    Determinism: same bits from run to run and for any number of threads; for sums on every backend, since the order of a sum is
    fixed: up to 32 entries left to right in input order, more in a tree of blocks of 32.
    Source: the semantics of ``torch.Tensor.coalesce`` (hybrid COO), without its limits.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> coo = sparsekit.coalesce(np.array([[0, 1, 1], [2, 0, 0]]), np.array([3, 4, 5]), (2, 3))
    >>> coo.indices
    array([[0, 1],
           [2, 0]])
    >>> coo.values
    array([3, 9])
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    return coalesce_triplet(
        _validate.as_triplet(indices, values, shape), reduce, return_inverse, return_counts, check=check, backend=backend
    )


def coalesce_triplet(
    triplet: _validate.Triplet,
    reduce: str = "sum",
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    check: bool,
    backend: str | None,
) -> Any:
    """coalesce of what has been checked, all but the range of the indices."""
    dtype, flat = triplet.dtype, triplet.flat_values()
    if reduce in ("min", "max") and dtype.startswith("complex"):
        raise TypeError(f"complex numbers have no order: reduce={reduce!r} needs real values, got {dtype}")
    if reduce == "mean" and (dtype == "bool" or dtype in _validate.INTEGERS):
        dtype, flat = "float64", flat.astype(np.float64)
    result = select(backend, triplet.device).coalesce(
        triplet.int64_indices(),
        flat,
        triplet.dims,
        dtype=dtype,
        reduce=reduce,
        return_inverse=return_inverse,
        return_counts=return_counts,
        check=check,
    )
    if result is None:
        _validate.check_index_range(triplet.indices, triplet.dims)
        raise RuntimeError("the backend reports an index out of range, but every index lies in its dimension")
    out_indices, out_values, inverse, counts = result
    back = triplet.adapter.wrap
    coo = COO(
        back(out_indices.astype(triplet.index_dtype, copy=False), triplet.index_dtype),
        back(out_values.reshape(out_indices.shape[1], *triplet.dense_shape), dtype),
        triplet.dims + triplet.dense_shape,
    )
    extras = [back(a, "int64") for a in (inverse, counts) if a is not None]
    return (coo, *extras) if extras else coo


@on_device_of("indices")
def is_coalesced(indices: Any, shape: Any = None, *, backend: str | None = None) -> bool:
    """Whether the coordinates are unique and in row-major order. Looks at the data; trusts no flag.

    Parameters
    ----------
    indices : integer array, (sparse_ndim, nnz) or (nnz,)
        Coordinates.
    shape : sequence of int, optional
        Sparse dimensions (dense ones may follow and are ignored). If given, the range of the indices is checked too.
    backend : str, optional
        See ``use_backend``.

    Returns
    -------
    bool
        True for no entries and for one.

    Raises
    ------
    IndexError
        An index lies outside ``shape``.
    ValueError, TypeError
        Wrong number of dimensions, not integers.

    Notes
    -----
    Cost: O(nnz * sparse_ndim), one pass, two more with ``shape``; on a CUDA device a wait for each answer. Deterministic.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> sparsekit.is_coalesced(np.array([[0, 1], [2, 0]]))
    True
    >>> sparsekit.is_coalesced(np.array([[1, 1], [0, 0]]))
    False
    """
    raw = import_array(indices, "indices")
    idx = _validate.as_indices(raw)
    if shape is not None:
        dims = _validate.shape_of(shape)
        if len(dims) < idx.shape[0]:
            raise ValueError(f"shape must have at least the {idx.shape[0]} dimensions of indices, got {dims}")
        _validate.check_index_range(idx, dims[: idx.shape[0]])
    if idx.dtype.itemsize == 8 and idx.dtype.kind == "u":
        idx = idx ^ np.uint64(1 << 63)  # moves the whole range of uint64 into int64, order kept
        idx = idx.view(np.int64)
    return select(backend, raw.device).is_coalesced(_validate.native(idx, np.dtype(np.int64)))
