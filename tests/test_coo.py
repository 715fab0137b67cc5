"""The COO class, and which kinds of arrays go in and come out."""

import dataclasses

import _cases
import _oracles
import numpy as np
import pytest
from _tolerance import assert_bits, assert_coo

import sparsekit
from sparsekit import COO


def test_unpacks_like_a_tuple():
    indices, values = np.array([[0, 1], [1, 0]]), np.array([1.0, 2.0])
    coo = COO(indices, values, (2, 3))
    i, v, shape = coo
    assert i is coo.indices and v is coo.values and shape == coo.shape == (2, 3)
    assert dataclasses.is_dataclass(COO) and [f.name for f in dataclasses.fields(COO)] == ["indices", "values", "shape"]
    for name in ("indices", "values", "shape"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(coo, name, None)
    assert_coo(sparsekit.coalesce(*coo), indices, values, (2, 3))


@pytest.mark.parametrize(
    ("indices", "values", "shape", "nnz", "sparse_ndim", "dense_ndim"),
    [
        (np.zeros((2, 5), int), np.ones((5, 4), np.float32), (3, 3, 4), 5, 2, 1),
        (np.zeros(5, np.int8), np.ones(5, bool), (3,), 5, 1, 0),
        (np.zeros((0, 2), int), np.ones((2, 4, 6)), (4, 6), 2, 0, 2),
        (np.zeros((2, 0), int), np.ones((0,)), (0, 3), 0, 2, 0),
    ],
)
def test_properties(indices, values, shape, nnz, sparse_ndim, dense_ndim):
    coo = COO(indices, values, shape)
    assert (coo.nnz, coo.sparse_ndim, coo.dense_ndim, coo.ndim) == (nnz, sparse_ndim, dense_ndim, len(shape))
    assert coo.dtype == values.dtype


def test_shape_holds_python_ints():
    coo = sparsekit.coalesce(np.array([0]), np.array([1.0]), np.array([3]))
    assert coo.shape == (3,) and type(coo.shape[0]) is int
    coo = sparsekit.coalesce(np.array([0]), np.array([1.0]), [np.int64(3)])
    assert coo.shape == (3,) and type(coo.shape[0]) is int


class Exporter:
    """The least that DLPack asks for."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldExporter(Exporter):
    """Before DLPack 1.0: no max_version, dl_device or copy."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
def test_any_dlpack_exporter(backend, exporter):
    case = _cases.case(5, (6, 7), (2,), 40, "float32")
    coo, inverse = sparsekit.coalesce(
        exporter(case.indices), exporter(case.values), case.shape, return_inverse=True, backend=backend
    )
    expected = _oracles.coalesce(case.indices, case.values)
    assert type(coo.values) is np.ndarray and type(inverse) is np.ndarray
    assert_coo(coo, expected[0], expected[1], case.shape)
    assert sparsekit.is_coalesced(exporter(expected[0]), backend=backend)
    x = np.array([3.0, -7.0, 1.0])
    assert_coo(sparsekit.topk(exporter(x), 1, backend=backend), np.array([[1]]), np.array([-7.0]), (3,))
    assert_bits(sparsekit.topk_mask(exporter(x), 1, backend=backend), np.array([False, True, False]))


def test_dlpack_exporter_is_updated_in_place(backend):
    arrays = [np.zeros((4, 2), np.float32) for _ in range(3)]
    values = np.ones((2, 2), np.float32)
    expected = _oracles.adam(*arrays, np.array([3, 1]), values, step=1)
    sparsekit.sparse_adam_step(*map(Exporter, arrays), Exporter(np.array([3, 1])), Exporter(values), step=1, backend=backend)
    for array, want in zip(arrays, expected, strict=True):
        assert_bits(array, want)


def test_array_api_strict(backend):
    xp = pytest.importorskip("array_api_strict")
    indices, values = xp.asarray([2, 0, 2]), xp.asarray([1.0, 2.0, 3.0], dtype=xp.float32)
    coo, counts = sparsekit.coalesce(indices, values, (4,), return_counts=True, backend=backend)
    for array, want in ((coo.indices, [[0, 2]]), (coo.values, [2.0, 4.0]), (counts, [1, 2])):
        assert type(array) is type(values)
        assert xp.all(array == xp.asarray(want, dtype=array.dtype))
    top = sparsekit.topk(values, 1, backend=backend)
    assert type(top.values) is type(values) and float(top.values[0]) == 3.0
    mask = sparsekit.topk_mask([values, values], 1, backend=backend)
    assert type(mask[0]) is type(values) and mask[0].dtype == xp.bool
    table = [xp.zeros((3, 2)) for _ in range(3)]
    sparsekit.sparse_adam_step(*table, xp.asarray([1]), xp.ones((1, 2)), step=1, lr=0.5, backend=backend)
    assert float(table[0][1, 0]) != 0.0 and float(table[0][0, 0]) == 0.0
    with pytest.raises(TypeError):
        sparsekit.coalesce(np.array([2]), xp.asarray([1.0]), (4,), backend=backend)


def test_numpy_subclasses_and_scalars(backend):
    memory = np.arange(3.0).view(np.memmap)
    coo = sparsekit.coalesce(np.array([1, 0, 1]), memory, (2,), backend=backend)
    assert_coo(coo, np.array([[0, 1]]), np.array([1.0, 2.0]), (2,))


def test_without_dlpack_is_refused(backend):
    for wrong in (object(), "text", None):
        with pytest.raises(TypeError):
            sparsekit.coalesce(np.array([1]), wrong, (2,), backend=backend)
        with pytest.raises(TypeError):
            sparsekit.topk(wrong, 1, backend=backend)
