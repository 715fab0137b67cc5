"""What users reported about the peers (FIELD.md): the right behaviour, one test for each item, named after it.

Here: coalesce. Top-k, Numba and DLPack are in test_field_more.py, the optimizers in torch/test_field_adam.py.
"""

import math
import tracemalloc

import _cases
import _oracles
import numpy as np
import pytest
from _tolerance import assert_bits, assert_coo

import sparsekit
from sparsekit import COO


def coalesce(indices, values, shape, backend, **options):
    return sparsekit.coalesce(np.array(indices), np.array(values), shape, backend=backend, **options)


# B-1. Coalesce: correctness.
def test_b1_01_shape_beyond_63_bits(backend):
    """pytorch#57416: CUDA coalesce gave negative indices; torch now refuses the shape."""
    indices = np.random.default_rng(0).integers(0, 10**6, (4, 1000))
    both = np.concatenate([indices, indices[:, ::-1]], 1)
    coo = coalesce(both, np.ones(2000), (10**6,) * 4, backend)
    assert coo.nnz == 1000 and np.all(coo.values == 2) and np.all(coo.indices >= 0)
    assert_bits(coo.indices, indices[:, np.lexsort(indices[::-1])])


def test_b1_02_size_does_not_overflow(backend):
    """pytorch#57542: numel of an empty (100000,)*4 was 7766279631452241920."""
    coo = coalesce(np.empty((4, 0), int), np.empty(0), (100_000,) * 4, backend)
    assert coo.nnz == 0 and math.prod(coo.shape) == 10**20
    with pytest.raises((MemoryError, ValueError)), sparsekit.use_backend(backend):
        coo.to_dense()


def test_b1_03_long_sum_at_one_index(backend):
    """pytorch#84471: a sum of 43 M float32 at one index was 12% off."""
    values = np.random.default_rng(0).random(2_000_000, np.float32)
    coo = coalesce(np.zeros((2, values.size), int), values, (3, 3), backend)
    assert coo.values[0] == np.float32(_oracles.exact_sum(values))
    assert np.add.accumulate(values)[-1] != coo.values[0]  # the plain float32 sum is wrong already


@pytest.mark.parametrize(("dtype", "n"), [("float16", 4096), ("bfloat16", 1000), ("bfloat16", 2**15)])
def test_b1_04_sixteen_bit_accumulation(backend, torch, dtype, n):
    """4096 float16 ones gave 2048, 1000 bfloat16 ones 256 (torch 2.13)."""
    ones = np.ones(n, _cases.dtype_of(dtype))
    assert float(coalesce(np.zeros(n, int), ones, (1,), backend).values[0]) == n
    t = torch.sparse_coo_tensor(
        torch.zeros(1, n, dtype=torch.int64), torch.ones(n, dtype=getattr(torch, dtype)), (1,), check_invariants=True
    )
    assert sparsekit.torch.coalesce(t, backend=backend).values().tolist() == [n]


def test_b1_05_overflow_shows_after_the_sum_only(backend):
    """pytorch#36786: float16 60000 twice is infinite once summed; with -60000 it is finite again."""
    values = np.float16([60000, 60000, 60000, 60000, -60000])
    coo = coalesce([0, 0, 1, 1, 1], values, (2,), backend)
    assert coo.values.tolist() == [math.inf, 60000]


@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        ([[-1, 0]], (3,)),
        ([[-4702111234474983746]], (1,)),
        ([[10], [0]], (1, 3)),
        ([[0, 1], [5, 2]], (3, 3)),
        ([[0, 5]], (3,)),
    ],
)
def test_b1_07_08_09_invalid_indices(backend, torch, indices, shape):
    """pytorch#153329, #114454: process abort or silent merge; pyg-team/pytorch_geometric#2913: num_nodes too small."""
    bad = next(i for row, n in zip(indices, shape, strict=True) for i in row if not 0 <= i < n)
    values = torch.ones(len(indices[0]))
    for check in (
        lambda: coalesce(indices, np.ones(len(indices[0])), shape, backend),
        lambda: sparsekit.is_coalesced(torch.tensor(indices), shape, backend=backend),
        lambda: sparsekit.torch.coalesce(
            torch.sparse_coo_tensor(torch.tensor(indices), values, shape, check_invariants=False), backend=backend
        ),
    ):
        with pytest.raises(IndexError, match=f"= {bad} is out of range for dimension . of size"):
            check()


@pytest.mark.parametrize(
    ("n", "dtype"),
    [(3_100_000_000, "int64"), (60_000, "int32"), (2**31 - 1, "int32"), (200, "uint8"), (2**32, "uint32")],
)
def test_b1_10_11_14_row_times_n_plus_column_overflows(backend, n, dtype):
    """pyg-team/pytorch_geometric#8812, cai4cai/torchsparsegradutils#68, jax#15896: packed keys beyond their type."""
    indices = np.array([[n - 1, 0, n - 1, 1], [n - 1, n - 1, n - 1, 0]]).astype(dtype)
    coo, inverse = coalesce(indices, [1, 2, 3, 4], (n, n), backend, return_inverse=True)
    assert_coo(coo, indices[:, [1, 3, 0]], np.array([2, 4, 4]), (n, n))
    assert inverse.tolist() == [2, 0, 2, 1]


def test_b1_13_seven_dimensions(backend):
    """pydata/sparse#429: ravel_multi_index refused the shape."""
    shape = (75_025, 75_025, 40_000, 30_000, 75_025, 9, 7)
    indices = np.stack([np.arange(75_025) % n for n in shape])
    coo = coalesce(np.concatenate([indices[:, ::-1], indices], 1), np.ones(150_050), shape, backend)
    assert_coo(coo, indices, np.full(75_025, 2.0), shape)


def test_b1_15_16_17_duplicates_are_summed_when_asked_and_in_their_own_type(backend):
    """scipy#20670: duplicates not summed; #24989: when the cast comes; #15226: summed behind the user's back."""
    coo = COO(np.array([[0, 1, 1], [1, 0, 0]]), np.ones(3), (2, 2))
    assert coo.nnz == coo.to_scipy().nnz == 3 and not sparsekit.is_coalesced(coo.indices, backend=backend)
    assert_coo(sparsekit.coalesce(*coo, backend=backend), np.array([[0, 1], [1, 0]]), np.array([1.0, 2.0]), (2, 2))
    values = np.array([0.6, 0.6, 1.2])
    assert coalesce([0, 0, 1], values, (2,), backend).values.astype(int).tolist() == [1, 1]
    assert coalesce([0, 0, 1], values.astype(int), (2,), backend).values.tolist() == [0, 1]


def test_b1_18_row_major(backend):
    """scipy 1.10 sorted by column, 1.11 by row; cupy#3620."""
    coo = coalesce([[1, 0, 1, 0], [0, 1, 1, 0]], [1, 2, 3, 4], (2, 2), backend)
    assert_coo(coo, np.array([[0, 0, 1, 1], [0, 1, 0, 1]]), np.array([4, 2, 1, 3]), (2, 2))


def test_b1_19_every_way_out_of_duplicates(backend):
    """cupy#6494: a method that only worked on canonical matrices."""
    pytest.importorskip("scipy.sparse")
    raw = COO(*_cases.case(1, (5, 6), (), 60, "float64"))
    clean = sparsekit.coalesce(*raw, backend=backend)
    assert_bits(raw.to_dense(), clean.to_dense())
    np.testing.assert_allclose(raw.to_scipy().toarray(), clean.to_dense(), rtol=1e-13)
    zero = COO(np.empty((2, 0), int), np.empty(0), (5, 6))
    assert_coo(sparsekit.add(raw, zero, backend=backend), *clean)


@pytest.mark.parametrize("dtype", _cases.DTYPES)
def test_b1_25_26_one_dtype_table_for_every_operation(backend, torch, dtype):
    """pytorch#60648, rusty1s/pytorch_sparse#277: half, bool, integer and complex holes, operation by operation."""
    case = _cases.case(2, (4, 5), (2,), 30, dtype)
    _, values, _, _ = _oracles.coalesce(case.indices, case.values)
    coo = sparsekit.coalesce(*case, backend=backend)
    assert_bits(coo.values, values)
    assert_bits(
        sparsekit.add(coo, coo, backend=backend).values,
        _oracles.coalesce(*[np.repeat(a, 2, i) for a, i in ((coo.indices, 1), (values, 0))])[1],
    )
    assert_bits(coo.to_dense(), _oracles.to_dense(*case))
    assert_bits(COO.from_rows(coo.to_dense()).to_dense(), coo.to_dense())
    assert sparsekit.topk(values, 3, backend=backend).dtype == values.dtype
    assert np.count_nonzero(sparsekit.topk_mask(values, 3, backend=backend)) == 3
    assert_bits(coo.to_torch()._values(), values)


def test_b1_27_flags_are_not_believed(backend, torch):
    """pytorch#105916: the flag is lost after backward, and a false one is believed."""
    lying = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.ones(2), (3,), is_coalesced=True, check_invariants=False)
    assert lying.is_coalesced()
    out = sparsekit.torch.coalesce(lying, backend=backend)
    assert out.indices().tolist() == [[1]] and out.values().tolist() == [2.0]
    sorted_unique = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (3,), check_invariants=True)
    assert not sorted_unique.is_coalesced()
    assert sparsekit.is_coalesced(sorted_unique._indices(), (3,), backend=backend)


def test_b1_28_the_gradient_of_coalesce_is_a_gather_by_inverse(backend):
    """pytorch#107097: which gradient duplicates get was argued over."""
    case = _cases.case(3, (3, 4), (2,), 40, "float64")
    coo, inverse = sparsekit.coalesce(*case, return_inverse=True, backend=backend)
    weights = np.random.default_rng(0).standard_normal(coo.values.shape)
    assert np.sum(coo.values * weights) == pytest.approx(np.sum(case.values * weights[inverse]), rel=1e-12)
    assert_bits(coo.indices[:, inverse], case.indices)


def test_b1_29_never_densified(backend):
    """pytorch#49683: 1 entry in (100000, 100000) took 45 GiB."""
    coo = COO(np.array([[99_999], [99_999]]), np.array([1.0]), (100_000, 100_000))

    def call():
        return sparsekit.add(sparsekit.coalesce(*coo, backend=backend), coo, backend=backend)

    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_b1_30_run_to_run(backend):
    """cupy#9323, jax#10255: atomics gave other bits on each run."""
    case = _cases.case(4, (50,), (), 50_000, "float32")
    first = sparsekit.coalesce(*case, backend=backend)
    for _ in range(5):
        assert_coo(sparsekit.coalesce(*case, backend=backend), *first)


def test_b1_32_a_row_that_sums_to_zero_is_kept(backend):
    """DeepSpeed#8504: [1, -1] was dropped, and with it an update."""
    rows = np.array([[0.0, 0.0], [1.0, -1.0]])
    coo = COO.from_rows(rows)
    assert_coo(coo, np.array([[1]]), rows[1:], (2, 2))
    both = sparsekit.add(coo, COO(coo.indices, -coo.values, (2, 2)), backend=backend)
    assert both.nnz == 1 and not both.values.any()  # an explicit zero stays an entry


# B-2. Coalesce: memory.
def test_b2_37_38_40_accumulated_entries_stay_bounded(backend):
    """pytorch#84469, #3139, tensorflow#31637: nnz grew with every operation, or all was densified."""
    rng = np.random.default_rng(0)
    total = COO(np.empty((1, 0), int), np.empty((0, 3)), (20, 3))
    for _ in range(30):
        total = sparsekit.add(total, COO(rng.integers(0, 20, (1, 50)), np.ones((50, 3)), (20, 3)), backend=backend)
    assert total.nnz == 20 and np.all(total.values.sum(0) == 1500)
