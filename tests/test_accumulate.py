"""add, and the ways into and out of COO: dense arrays, rows, scipy, torch."""

import itertools

import _cases
import _oracles
import numpy as np
import pytest
from _tolerance import assert_bits, assert_coo, assert_equal, native, to_numpy
from hypothesis import given
from hypothesis import strategies as st

import sparsekit
from sparsekit import COO


def joined(*coos):
    """What add means: the entries one after another, in the promoted type, coalesced once."""
    dtype = np.result_type(*(coo.values for coo in coos))
    indices = np.concatenate([coo.indices for coo in coos], 1)
    with np.errstate(all="ignore"):
        return _oracles.coalesce(indices, np.concatenate([coo.values.astype(dtype) for coo in coos]))


@given(
    case=_cases.cases(),
    parts=st.integers(2, 4),
    dtypes=st.lists(st.sampled_from(_cases.DTYPES), min_size=4, max_size=4),
)
def test_add(backend, case, parts, dtypes):
    cuts = np.linspace(0, len(case.values), parts + 1).astype(int)
    coos = []
    for (lo, hi), name in zip(itertools.pairwise(cuts), dtypes, strict=False):
        values = _cases.numbers(np.random.default_rng(lo), case.values[lo:hi].shape, name)
        coos.append(COO(case.indices[:, lo:hi], values, case.shape))
    kinds = {coo.dtype.kind for coo in coos}
    if "V" in kinds and (kinds & set("biu") or "float16" in {coo.dtype.name for coo in coos}):
        return  # NumPy has no common type of bfloat16 and float16, and differs from torch on bfloat16 with integers
    indices, values, _, _ = joined(*coos)
    with np.errstate(all="ignore"):
        assert_coo(sparsekit.add(*coos, backend=backend), indices, values, case.shape)


def test_add_is_one_tree_over_all(backend):
    # Pairwise additions would round to float32 in between: 1 + 2**-24 is 1, three times over.
    one = COO(np.array([[0]]), np.array([1.0], np.float32), (1,))
    small = COO(np.array([[0]]), np.array([2.0**-24], np.float32), (1,))
    total = sparsekit.add(one, small, small, small, backend=backend)
    assert_coo(total, np.array([[0]]), np.array([1 + 2.0**-22], np.float32), (1,))


@pytest.mark.parametrize(
    ("left", "right"),
    [("int8", "int64"), ("int32", "uint8"), ("int64", "uint64"), ("uint64", "int8"), ("uint32", "uint64")],
)
def test_add_of_two_index_types(backend, left, right):
    # int64 with uint64 promotes to float64 in NumPy: coordinates must not.
    a = COO(np.array([[1, 100]], left), np.array([1, 2]), (2**62,))
    b = COO(np.array([[100, 1]], right), np.array([3, 4]), (2**62,))
    total = sparsekit.add(a, b, backend=backend)
    assert total.indices.dtype.kind in "iu"
    assert total.indices.tolist() == [[1, 100]]
    assert_bits(total.values, np.array([5, 5]))
    if right == "uint64" and left == "int64":
        b = COO(np.array([[2**62 - 1, 2**62 - 2]], right), np.array([3, 4]), (2**62,))
        assert sparsekit.add(a, b, backend=backend).indices.tolist() == [[1, 100, 2**62 - 2, 2**62 - 1]]


@pytest.mark.parametrize("sparse_ndim", [0, 1, 2])
def test_to_dense_keeps_negative_zeros(sparse_ndim):
    x = np.array([[-0.0, 1.0], [2.0, 3.0]])
    indices = np.array(list(itertools.product([0, 1], repeat=sparse_ndim)), int).reshape(2**sparse_ndim, sparse_ndim).T
    assert_bits(COO(indices, x.reshape(-1, *x.shape[sparse_ndim:]), x.shape).to_dense(), x)


def test_accumulation_never_grows(backend):
    gradient = COO(np.array([[2, 0, 2]]), np.ones((3, 4), np.float32), (5, 4))
    total = gradient
    for _ in range(50):
        total = sparsekit.add(total, gradient, backend=backend)
    assert_coo(total, np.array([[0, 2]]), np.float32([[51] * 4, [102] * 4]), (5, 4))
    assert gradient.nnz == 3


def test_add_takes_only_coos_of_one_shape(backend):
    a = COO(np.array([[0], [1]]), np.array([1.0]), (2, 2))
    for b, error, words in (
        (COO(np.array([[0], [1]]), np.array([1.0]), (2, 3)), ValueError, ("(2, 2)", "(2, 3)")),
        (COO(np.array([[0]]), np.ones((1, 2)), (2, 2)), ValueError, ("(2,)", "(2, 2)")),
        (np.ones((2, 2)), TypeError, ("COO", "ndarray")),
        (3, TypeError, ("COO", "int")),
        ((a.indices, a.values, a.shape), TypeError, ("COO", "tuple")),
    ):
        for pair in ((a, b), (b, a)):
            with pytest.raises(error) as raised:
                sparsekit.add(*pair, backend=backend)
            assert all(word in str(raised.value) for word in words), str(raised.value)


# Dense.
@given(case=_cases.cases(), cut=st.integers(0, 2))
def test_to_dense_sums_duplicates(backend, case, cut):
    shape = tuple(min(n, 40) for n in case.shape)
    indices = (case.indices % np.maximum(shape[: len(case.indices)], 1)[:, None].astype(case.indices.dtype)).astype(np.int64)
    coo = COO(indices, case.values, shape)
    if np.prod(shape) > 10**6:
        return
    with sparsekit.use_backend(backend), np.errstate(all="ignore"):
        dense = coo.to_dense()
    assert_bits(dense, _oracles.to_dense(indices, case.values, shape))
    sparse_ndim = max(0, len(shape) - cut)
    back = COO.from_dense(dense, sparse_ndim=sparse_ndim)
    filled = dense.astype(bool) if dense.dtype.kind != "V" else np.asarray(dense, np.float32) != 0
    filled = filled.any(axis=tuple(range(sparse_ndim, len(shape))))
    expected = np.argwhere(filled).T
    assert back.nnz == expected.shape[1] and back.shape == shape and back.sparse_ndim == sparse_ndim
    assert_bits(back.indices, expected.astype(np.int64).reshape(sparse_ndim, back.nnz))
    assert_bits(back.values, dense[filled] if dense.ndim else dense.reshape(1)[filled.reshape(1)])


def test_to_dense_checks_the_range(backend):
    # A negative index would wrap around without a word in NumPy.
    for index in (-1, 3, 2**40):
        with pytest.raises(IndexError, match=str(index)), sparsekit.use_backend(backend):
            COO(np.array([[index]]), np.array([1.0]), (3,)).to_dense()


def test_from_dense_keeps_what_is_not_zero():
    x = np.array([[0.0, -0.0, np.nan], [1e-300, 0.0, -np.inf]])
    assert_coo(COO.from_dense(x), np.array([[0, 1, 1], [2, 0, 2]]), np.array([np.nan, 1e-300, -np.inf]), (2, 3))
    assert_coo(COO.from_rows(x), np.array([[0, 1]]), x, (2, 3))
    rows = np.array([[0.0, 0.0], [1.0, -1.0], [0.0, np.nan], [-0.0, 0.0]])  # a row that sums to zero is still there
    assert_coo(COO.from_rows(rows), np.array([[1, 2]]), rows[1:3], (4, 2))
    assert_coo(COO.from_rows(np.array([0, 5, 0, 0, 9])), np.array([[1, 4]]), np.array([5, 9]), (5,))
    assert_coo(COO.from_dense(x, sparse_ndim=0), np.empty((0, 1), int), x[None], (2, 3))
    assert COO.from_dense(np.zeros((3, 0))).nnz == 0
    assert COO.from_rows(np.zeros((0, 3))).nnz == 0


@pytest.mark.parametrize("layout", _cases.LAYOUTS)
def test_from_dense_layouts(layout):
    x = _cases.numbers(np.random.default_rng(0), (6, 5), "float32") * (np.arange(5) % 2)
    given_in = _cases.LAYOUTS[layout](x)
    coo = COO.from_dense(given_in)
    assert_coo(coo, np.argwhere(x).T, x[x != 0], (6, 5))
    assert_bits(native(given_in), x)
    assert not np.shares_memory(coo.values, given_in)


@pytest.mark.parametrize("sparse_ndim", [-1, 3])
def test_from_dense_wants_a_sparse_ndim_in_range(sparse_ndim):
    with pytest.raises(ValueError, match=str(sparse_ndim)):
        COO.from_dense(np.ones((2, 2)), sparse_ndim=sparse_ndim)


# scipy.
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex128", "bool"])
@pytest.mark.parametrize("dims", [(7, 9), (12,), (3, 4, 5)])
def test_scipy_and_back(dtype, dims):
    pytest.importorskip("scipy.sparse")
    case = _cases.case(3, dims, (), 40, dtype)
    matrix = COO(*case).to_scipy()
    assert type(matrix).__name__ == "coo_array" and matrix.shape == dims and matrix.nnz == 40  # duplicates kept
    assert_bits(np.asarray(matrix.data), case.values)
    back = COO.from_scipy(matrix)
    assert back.shape == dims
    np.testing.assert_array_equal(back.indices, case.indices)
    assert_bits(back.values, case.values)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil"])
def test_from_scipy_takes_every_format(form):
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    for kind in (sparse.coo_array, sparse.coo_matrix):
        coo = COO.from_scipy(kind(dense).asformat(form))
        assert_bits(coo.to_dense(), dense)
    duplicates = sparse.coo_array((np.ones(3), ([0, 0, 1], [1, 1, 0])), (2, 2))
    duplicates.has_canonical_format = True  # a false flag
    coo = sparsekit.coalesce(*COO.from_scipy(duplicates))
    assert_bits(coo.to_dense(), np.array([[0.0, 2.0], [1.0, 0.0]]))


def test_to_scipy_refuses_what_scipy_cannot_hold():
    pytest.importorskip("scipy.sparse")
    with pytest.raises((ValueError, TypeError), match="dense"):
        COO(np.array([[0]]), np.ones((1, 2)), (3, 2)).to_scipy()
    with pytest.raises((ValueError, TypeError), match="bfloat16"):
        COO(np.array([[0]]), np.ones(1, _oracles.BFLOAT16), (3,)).to_scipy()


# torch.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64", "complex64", "bool"])
@pytest.mark.parametrize(("dims", "dense"), [((7, 9), ()), ((12,), (3,)), ((2, 3, 4), (2, 2)), ((), (3,)), ((3, 0), ())])
def test_torch_and_back(torch, dtype, dims, dense):
    case = _cases.case(3, dims, dense, 40, dtype, index_dtype="int32")
    tensor = COO(*case).to_torch()
    assert tensor.layout == torch.sparse_coo and tuple(tensor.shape) == case.shape
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert (tensor.sparse_dim(), tensor.dense_dim()) == (len(dims), len(dense))
    assert_bits(tensor._values(), case.values)  # duplicates kept
    back = COO.from_torch(tensor)
    assert isinstance(back.indices, torch.Tensor) and isinstance(back.values, torch.Tensor)
    assert back.values.data_ptr() == tensor._values().data_ptr()  # no copy
    assert_coo(back, case.indices.astype(np.int64), case.values, case.shape)
    again = back.to_torch()
    assert again._values().data_ptr() == tensor._values().data_ptr()
    assert_equal(again._indices(), case.indices.astype(np.int64))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_from_torch_wants_a_sparse_tensor(torch):
    for wrong in (torch.ones(3), torch.eye(2).to_sparse_csr(), np.ones(3)):
        with pytest.raises((TypeError, ValueError)):
            COO.from_torch(wrong)


def test_kinds_stay_torch(backend, torch):
    coo = COO(torch.tensor([[2, 0, 2]]), torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16), (4,))
    total = sparsekit.add(coo, coo, backend=backend)
    assert isinstance(total.values, torch.Tensor) and total.values.dtype == torch.bfloat16
    assert_equal(to_numpy(total.values).astype(float), np.array([4.0, 8.0]))
    dense = coo.to_dense()
    assert isinstance(dense, torch.Tensor) and dense.tolist() == [2.0, 0.0, 4.0, 0.0]
    rows = COO.from_rows(torch.tensor([[0.0, 0.0], [1.0, -1.0]]))
    assert isinstance(rows.values, torch.Tensor) and rows.indices.tolist() == [[1]]
    with pytest.raises(TypeError):
        sparsekit.add(coo, COO(np.array([[0]]), np.array([1.0]), (4,)), backend=backend)
