"""The worked examples of the contract, each on every backend and as NumPy and torch arrays."""

import numpy as np
import pytest
from _tolerance import assert_coo, to_numpy

import sparsekit
from sparsekit import COO


@pytest.fixture(params=["numpy", "torch"])
def array(request):
    """Makes arrays of one kind."""
    if request.param == "numpy":
        return np.array
    torch = request.getfixturevalue("torch")
    return lambda x, dtype=None: torch.from_numpy(np.array(x, dtype))


EXAMPLES = {
    "sum": ((2, 3), [[0, 1, 1], [2, 0, 0]], [3, 4, 5], "int64", [[0, 1], [2, 0]], [3, 9]),
    "float16": ((2, 3), [[0, 1, 1], [2, 0, 0]], [0.5, 0.25, 0.25], "float16", [[0, 1], [2, 0]], [0.5, 0.5]),
    "three dimensions": (
        (3, 3, 4),
        [[0, 1, 1, 2], [2, 0, 0, 1], [1, 2, 2, 3]],
        [1, 2, 3, 4],
        "float64",
        [[0, 1, 2], [2, 0, 1], [1, 2, 3]],
        [1, 5, 4],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_coalesce(backend, array, name):
    shape, indices, values, dtype, out_indices, out_values = EXAMPLES[name]
    coo = sparsekit.coalesce(array(indices), array(values, dtype), shape, backend=backend)
    assert type(coo.values) is type(array([0]))
    assert_coo(coo, np.array(out_indices), np.array(out_values, dtype), shape)


def test_add(backend, array):
    a, b = (COO(array([[0, 1], [1, 0]]), array(values), (2, 2)) for values in ([1, 2], [3, 4]))
    assert_coo(sparsekit.add(a, b, backend=backend), np.array([[0, 1], [1, 0]]), np.array([4, 6]), (2, 2))


def test_adam_touches_positions_1_and_4_only(backend, array):
    gradient = COO.from_rows(array([0.0, 5.0, 0.0, 0.0, 9.0]))
    param, m, v = (array(np.full(5, x)) for x in (1.0, 0.5, 0.25))
    sparsekit.sparse_adam_step(param, m, v, gradient.indices, gradient.values, step=1, backend=backend)
    for out, before in ((param, 1.0), (m, 0.5), (v, 0.25)):
        assert np.flatnonzero(to_numpy(out) != before).tolist() == [1, 4]


@pytest.mark.parametrize(
    ("x", "k", "positions"),
    [
        (np.ones(8), 3, [0, 1, 2]),  # torch gives 6, 5, 4
        (np.array([-5.0, 1, 2]), 1, [0]),
        (np.array([1, -128, 127], np.int8), 1, [1]),
        (np.array([np.inf, -np.nan, 3.0]), 1, [1]),
        (np.array([0.0, -0.0, 0.0]), 2, [0, 1]),
        (np.array([False, True, True]), 1, [1]),
        (np.array([3, 3 - 3j, 4j], np.complex64), 2, [1, 2]),
    ],
)
def test_topk_rules(backend, array, x, k, positions):
    coo = sparsekit.topk(array(x), k, backend=backend)
    assert_coo(coo, np.array([positions]), x[positions], x.shape)
    assert np.flatnonzero(to_numpy(sparsekit.topk_mask(array(x), k, backend=backend))).tolist() == positions


@pytest.mark.parametrize(("dtype", "n"), [("float16", 4096), ("bfloat16", 1000), ("float32", 2**24 + 2)])
def test_ones_at_one_index(backend, torch, dtype, n):
    """torch gives 2048, 256 and 16777216: each float32 one is lost from there on."""
    if backend == "cupy-host" and n > 2**20:
        pytest.skip("the stand-in for a device takes a minute")
    coo = sparsekit.coalesce(torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=getattr(torch, dtype)), (1,), backend=backend)
    assert coo.values.tolist() == [n]
