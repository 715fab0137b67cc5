"""add: the sum of sparse arrays, as gradient accumulation needs it."""

from typing import Any

import numpy as np

from sparsekit import _validate
from sparsekit._coalesce import coalesce_triplet
from sparsekit._coo import COO
from sparsekit._dlpack import namespace, on_device_of, widen


@on_device_of("a.values")
def add(a: COO, b: COO, *more: COO, backend: str | None = None) -> COO:
    """The coalesced sum of sparse arrays of one shape.

    Parameters
    ----------
    a, b, *more : COO
        Same shape and number of sparse dimensions; they need not be coalesced.
    backend : str, optional
        See ``use_backend``.

    Returns
    -------
    COO
        Of the input's library; dtype by NumPy's promotion (bfloat16 counts as float32). Its nnz is the number of distinct
        coordinates, so a running sum does not grow beyond them. Never a view of an input.

    Raises
    ------
    ValueError
        Shapes or numbers of sparse dimensions differ.
    IndexError, TypeError
        As ``coalesce``; an argument is no COO.

    Notes
    -----
    Cost: one ``coalesce`` of all the entries. Determinism: as ``coalesce``; the entries of one coordinate are summed in the
    order of the arguments. Source: sparse ``+`` of torch and scipy, without their growth or densifying.

    Examples
    --------
    >>> import numpy as np, sparsekit
    >>> at = np.array([[0, 1], [1, 0]])
    >>> one, two = sparsekit.COO(at, np.array([1, 2]), (2, 2)), sparsekit.COO(at, np.array([3, 4]), (2, 2))
    >>> sparsekit.add(one, two).values
    array([4, 6])
    """
    names = ["a", "b", *(f"more[{i}]" for i in range(len(more)))]
    triplets = [_as_triplet(x, name) for x, name in zip((a, b, *more), names, strict=True)]
    first = triplets[0]
    for triplet, name in zip(triplets, names, strict=True):
        if (triplet.dims, triplet.dense_shape) != (first.dims, first.dense_shape):
            raise ValueError(
                f"all terms must have the same sparse and dense dimensions: a has {first.dims} and {first.dense_shape}, "
                f"{name} has {triplet.dims} and {triplet.dense_shape}"
            )
        if (triplet.adapter.library, triplet.device) != (first.adapter.library, first.device):
            raise TypeError(
                f"all terms must come from one library and device: a is {first.adapter.library} on {first.device}, "
                f"{name} is {triplet.adapter.library} on {triplet.device}"
            )
    dtype = _common_dtype([t.dtype for t in triplets])
    index_dtype = np.result_type(*(t.index_dtype for t in triplets))
    if index_dtype.kind == "f":  # NumPy's answer to uint64 with a signed type
        index_dtype = np.dtype(np.int64)  # where uint64 beyond it wraps to negative, which the range check still finds
    xp = namespace(first.values)
    total = first._replace(
        indices=xp.concatenate([t.indices for t in triplets], axis=1, dtype=index_dtype, casting="unsafe"),
        index_dtype=index_dtype.name,
        values=xp.concatenate([t.values if t.dtype == dtype else widen(t.values, t.dtype).astype(dtype) for t in triplets]),
        dtype=dtype,
    )
    try:
        coo: COO = coalesce_triplet(total, check=True, backend=backend)
    except IndexError:
        for triplet in triplets:  # to name the place in the term
            _validate.check_index_range(triplet.indices, triplet.dims)
        raise
    return coo


def _as_triplet(x: Any, name: str) -> _validate.Triplet:
    if not isinstance(x, COO):
        raise TypeError(f"{name} must be a COO, got {type(x).__name__}")
    return _validate.as_triplet(*x)


def _common_dtype(dtypes: list[str]) -> str:
    if len(set(dtypes)) == 1:
        return dtypes[0]
    others = set(dtypes) - {"bfloat16"}
    if "bfloat16" in dtypes and others <= {"bool", *_validate.INTEGERS}:
        raise TypeError(f"bfloat16 and integers have no common dtype in NumPy, got {', '.join(dtypes)}; convert first")
    # With other floats bfloat16 counts as float32, the narrowest that holds it.
    return np.result_type(*others, *(["float32"] if "bfloat16" in dtypes else [])).name
