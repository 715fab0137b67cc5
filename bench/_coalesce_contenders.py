"""The ways to coalesce: sparsekit, SciPy, torch, NumPy, pydata/sparse, PyG, GraphBLAS, polars.

Each takes its input in the form that it likes best, made outside the time, and must give row-major coordinates and values.
"""

from functools import partial
from typing import Any

import numpy as np

from bench._case import Arrays, Case, Contender, Prepared
from bench._data import as_numpy, as_torch, bits, torch_bits
from bench._ours import contenders, refuse_slow, release


def _is_matrix(case: Case, inputs: Arrays) -> bool:
    """Scalar entries in two dimensions, of a dtype that NumPy knows."""
    return len(inputs["shape"]) == len(inputs["indices"]) == 2 and case.dtype != "bfloat16"


# sparsekit


def _sparsekit(case: Case, inputs: Arrays, *, backend: str, check: bool = True) -> Prepared | None:
    import sparsekit

    refuse_slow(backend, inputs["values"].size)
    if not check and case.n < 10_000_000:
        return None
    indices, values = inputs["indices"], as_numpy(inputs["values"], case.dtype)
    shape = tuple(inputs["shape"].tolist())
    return Prepared(
        lambda _: sparsekit.coalesce(indices, values, shape, check=check, backend=backend),
        lambda coo: {"indices": coo.indices, "values": bits(coo.values)},
        release=release,
    )


def _sparsekit_torch(case: Case, inputs: Arrays) -> Prepared | None:
    """The torch layer, tensors in and out; where its own cost would show."""
    import sparsekit.torch

    if case.n > 100_000:
        return None
    tensor = _sparse_tensor(case, inputs)
    return Prepared(lambda _: sparsekit.torch.coalesce(tensor), _read_tensor, release=release)


# torch


def _sparse_tensor(case: Case, inputs: Arrays) -> Any:
    import torch

    indices, values = torch.from_numpy(inputs["indices"]), as_torch(inputs["values"], case.dtype)
    return torch.sparse_coo_tensor(indices, values, inputs["shape"].tolist(), check_invariants=False)


def _read_tensor(tensor: Any) -> Arrays:
    return {"indices": tensor.indices().numpy(), "values": torch_bits(tensor.values())}


def _torch(case: Case, inputs: Arrays) -> Prepared:
    tensor = _sparse_tensor(case, inputs)
    return Prepared(lambda _: tensor.coalesce(), _read_tensor)


def _torch_index_add(case: Case, inputs: Arrays) -> Prepared | None:
    """unique, then index_add_: one sparse dimension."""
    import torch

    if len(inputs["indices"]) != 1:
        return None
    ids, values = torch.from_numpy(inputs["indices"][0]), as_torch(inputs["values"], case.dtype)

    def call(_: None) -> Any:
        unique, inverse = torch.unique(ids, return_inverse=True)
        return unique, values.new_zeros(len(unique), *values.shape[1:]).index_add_(0, inverse, values)

    return Prepared(call, lambda result: {"indices": result[0].numpy()[None], "values": torch_bits(result[1])})


# SciPy


def _scipy(case: Case, inputs: Arrays) -> Prepared | None:
    """coo_array.sum_duplicates: scalar entries in any number of dimensions."""
    import scipy.sparse

    if len(inputs["shape"]) != len(inputs["indices"]) or case.dtype == "bfloat16":
        return None
    values, coords, shape = inputs["values"], tuple(inputs["indices"]), tuple(inputs["shape"].tolist())

    def call(matrix: Any) -> Any:
        matrix.sum_duplicates()
        return matrix

    return Prepared(call, _read_scipy, fresh=lambda: scipy.sparse.coo_array((values, coords), shape=shape))


def _scipy_csr(case: Case, inputs: Arrays) -> Prepared | None:
    """To CSR, which sums duplicates, and back."""
    import scipy.sparse

    if not _is_matrix(case, inputs):
        return None
    matrix = scipy.sparse.coo_array((inputs["values"], tuple(inputs["indices"])), shape=tuple(inputs["shape"].tolist()))

    def call(_: None) -> Any:
        csr = matrix.tocsr()
        csr.sort_indices()
        return csr.tocoo()

    return Prepared(call, _read_scipy)


def _read_scipy(matrix: Any) -> Arrays:
    return {"indices": np.stack(matrix.coords), "values": matrix.data}


# NumPy


def _numpy(case: Case, inputs: Arrays) -> Prepared | None:
    """Sort flat keys, then add.reduceat."""
    if case.dtype == "bfloat16":
        return None
    indices, values = tuple(inputs["indices"]), inputs["values"]
    dims = tuple(inputs["shape"][: len(indices)].tolist())

    def call(_: None) -> Any:
        keys = np.ravel_multi_index(indices, dims)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        heads = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        return np.unravel_index(ordered[heads], dims), np.add.reduceat(values[order], heads, axis=0)

    return Prepared(call, lambda result: {"indices": np.stack(result[0]), "values": result[1]})


# pydata/sparse


def _pydata(case: Case, inputs: Arrays) -> Prepared | None:
    import sparse

    if len(inputs["shape"]) != len(inputs["indices"]) or case.dtype == "bfloat16":
        return None
    indices, values, shape = inputs["indices"], inputs["values"], tuple(inputs["shape"].tolist())
    return Prepared(lambda _: sparse.COO(indices, values, shape=shape), lambda coo: {"indices": coo.coords, "values": coo.data})


# PyG


def _pyg(case: Case, inputs: Arrays) -> Prepared | None:
    """coalesce of edges; the rows of a table are edges from their id to node 0."""
    import torch
    import torch_geometric.utils

    indices = inputs["indices"]
    if len(indices) > 2:
        return None
    sparse_ndim, nodes = len(indices), int(inputs["shape"][: len(indices)].max())
    edges = torch.from_numpy(np.concatenate([indices, np.zeros_like(indices)]) if sparse_ndim == 1 else indices)
    values = as_torch(inputs["values"], case.dtype)
    return Prepared(
        lambda _: torch_geometric.utils.coalesce(edges, values, num_nodes=nodes, reduce="sum"),
        lambda result: {"indices": result[0][:sparse_ndim].numpy(), "values": torch_bits(result[1])},
    )


# GraphBLAS


def _graphblas(case: Case, inputs: Arrays) -> Prepared | None:
    """Build, which sums duplicates, and extract."""
    import graphblas

    if not _is_matrix(case, inputs):
        return None
    (rows, columns), values = (np.ascontiguousarray(i.astype(np.uint64)) for i in inputs["indices"]), inputs["values"]
    nrows, ncols = inputs["shape"].tolist()

    def call(_: None) -> Any:
        matrix = graphblas.Matrix.from_coo(rows, columns, values, nrows=nrows, ncols=ncols, dup_op=graphblas.binary.plus)
        return matrix.to_coo()

    return Prepared(call, lambda result: {"indices": np.stack(result[:2]).astype(np.int64), "values": result[2]})


# polars


def _polars(case: Case, inputs: Arrays) -> Prepared | None:
    """group_by, sum, sort."""
    import polars

    if len(inputs["shape"]) != len(inputs["indices"]) or case.dtype == "bfloat16":
        return None
    names = [f"i{axis}" for axis in range(len(inputs["indices"]))]
    frame = polars.DataFrame({**dict(zip(names, inputs["indices"], strict=True)), "x": inputs["values"]})
    return Prepared(
        lambda _: frame.group_by(names).agg(polars.col("x").sum()).sort(names),
        lambda result: {"indices": np.stack([result[name].to_numpy() for name in names]), "values": result["x"].to_numpy()},
    )


CONTENDERS = (
    *contenders(_sparsekit),
    Contender("sparsekit, check=False", partial(_sparsekit, backend="numba", check=False), ours=True),
    Contender("sparsekit.torch", _sparsekit_torch, ours=True),
    Contender("torch", _torch),
    Contender("torch unique + index_add_", _torch_index_add),
    Contender("scipy sum_duplicates", _scipy),
    Contender("scipy CSR", _scipy_csr),
    Contender("numpy", _numpy),
    Contender("pydata/sparse", _pydata),
    Contender("PyG", _pyg),
    Contender("graphblas", _graphblas),
    Contender("polars", _polars),
)
