"""coalesce and is_coalesced against plain loops, NumPy, scipy and torch, on every backend."""

import functools
import itertools
import math
from fractions import Fraction

import _cases
import _oracles
import ml_dtypes
import numpy as np
import pytest
from _tolerance import assert_bits, assert_close, assert_coo, assert_equal, native
from hypothesis import given
from hypothesis import strategies as st

import sparsekit


def assert_reduced(actual, expected, reduce):
    """Sums of floats are promised to the bit, and a real mean or product has one rounded operation at each step too."""
    kind = expected.dtype.kind
    if reduce in ("min", "max"):
        assert_equal(actual, expected)  # which zero of two is not promised
    elif kind == "c" and reduce != "sum":  # no single way to round a complex product or quotient
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        finite = np.isfinite(expected)
        error = np.abs(actual[finite].astype(complex) - expected[finite])
        limit = 2.0**-22 if expected.dtype == np.complex64 else 2.0**-44
        assert np.all(error <= limit * np.abs(expected[finite]) + np.finfo(expected.real.dtype).tiny)
    else:
        assert_bits(actual, expected)


# The oracles themselves.
def test_oracle_rounding():
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32)
    near_ties = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | np.uint32([0x7FFF, 0x8000, 0x8001])).ravel()
    for x in (bits.view(np.float32), near_ties.view(np.float32)):
        with np.errstate(all="ignore"):
            assert_bits(_oracles.narrow(x, _oracles.BFLOAT16), x.astype(_oracles.BFLOAT16))
    for x, dtype in itertools.product((1.0, 2.0**-24, 3 * 2.0**-25, 65519.9, 65520.0, -0.1, 1e-40, 2049.0), _cases.REALS):
        with np.errstate(over="ignore"):
            assert _oracles.nearest(Fraction(x), dtype) == float(np.array(x).astype(_cases.dtype_of(dtype)))


def test_oracle_coalesce_is_numpy_unique():
    indices, values, _ = _cases.case(3, (7, 9), (2,), 500, "int64")
    unique, inverse, counts = np.unique(indices, axis=1, return_inverse=True, return_counts=True)
    sums = np.zeros((unique.shape[1], 2), np.int64)
    np.add.at(sums, inverse.ravel(), values)
    for ours, numpys in zip(_oracles.coalesce(indices, values), (unique, sums, inverse.ravel(), counts), strict=True):
        assert_bits(ours, numpys)


def test_oracle_tree_is_the_order_of_the_contract():
    x = _cases.numbers(np.random.default_rng(0), 32 * 32 * 2 + 5, "float64")
    blocks = [functools.reduce(np.add, x[i : i + 32]) for i in range(0, x.size, 32)]  # 65 of them
    upper = [functools.reduce(np.add, blocks[i : i + 32]) for i in range(0, 65, 32)]  # 3 of them
    assert _oracles.tree(list(x), np.add) == (upper[0] + upper[1]) + upper[2]
    assert _oracles.tree(list(x), np.add) != functools.reduce(np.add, x)  # the case can tell one order from another
    assert not np.signbit(_oracles.tree([np.float64(-0.0), np.float64(0.0)], np.add))
    assert np.signbit(_oracles.tree([np.float64(-0.0)] * 40, np.add))


# Against the oracle.
@given(case=_cases.cases(), check=st.booleans())
def test_every_reduction(backend, case, check):
    before = case.indices.copy(), case.values.copy()
    for reduce in _cases.reduces(case.values.dtype.name):
        indices, values, inverse, counts = _oracles.coalesce(case.indices, case.values, reduce)
        with np.errstate(all="ignore"):
            coo, got_inverse, got_counts = sparsekit.coalesce(
                *case, reduce=reduce, return_inverse=True, return_counts=True, check=check, backend=backend
            )
            plain = sparsekit.coalesce(*case, reduce=reduce, check=check, backend=backend)  # may go another way
        assert_coo(coo, indices, values, case.shape, functools.partial(assert_reduced, reduce=reduce))
        assert_coo(plain, indices, values, case.shape, functools.partial(assert_reduced, reduce=reduce))
        assert_bits(got_inverse, inverse)
        assert_bits(got_counts, counts)
    assert_bits(case.indices, before[0])
    assert_bits(case.values, before[1])


@functools.cache
def large(distribution, dtype, dims, dense):
    case = _cases.case(11, dims, dense, 100_000 // max(1, *dense, 1), dtype, distribution, "int32")
    return case, _oracles.coalesce(case.indices, case.values)


@pytest.mark.parametrize("distribution", _cases.DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("dtype", "dims", "dense"),
    [
        ("float32", (1000, 1000), ()),
        ("float16", (10**6,) * 4, ()),
        ("bfloat16", (50_000,), (8,)),
        ("float64", (2**62,) * 5, (4,)),
        ("complex64", (300, 300, 300), ()),
        ("int16", (2**31,), (2, 2)),
        ("float32", (2**32, 2**32), ()),  # 64 bits of key, to the last
        ("int64", (2**63 - 1, 2), ()),
        ("bool", (7,), (3,)),
    ],
)
def test_1e5_entries(backend, distribution, dtype, dims, dense):
    case, (indices, values, inverse, counts) = large(distribution, dtype, dims, dense)
    coo, got_inverse, got_counts = sparsekit.coalesce(*case, return_inverse=True, return_counts=True, backend=backend)
    assert_coo(coo, indices, values, case.shape)
    assert_bits(got_inverse, inverse)
    assert_bits(got_counts, counts)
    assert_coo(sparsekit.coalesce(*case, backend=backend), indices, values, case.shape)  # without inverse: other ways


@pytest.mark.parametrize("outliers", [[2**40], [2**62, 2**62 - 1], list(range(0, 2**40, 2**33))])
def test_keys_crowded_in_one_corner(backend, outliers):
    # The leading bits say nothing of nearly all entries, and split off a few.
    rng = np.random.default_rng(1)
    index = rng.permutation(np.concatenate([rng.integers(0, 700, 50_000), outliers, outliers]))
    values = _cases.numbers(rng, index.size, "float32")
    indices, sums, inverse, _ = _oracles.coalesce(index, values)
    for two in (index, np.stack([index // 2, index % 2])):
        shape = (2**63 - 1,) if two.ndim == 1 else (2**62, 2)
        coo, got_inverse = sparsekit.coalesce(two, values, shape, return_inverse=True, backend=backend)
        assert_bits(coo.values, sums)
        assert_bits(got_inverse, inverse)
        assert_bits(sparsekit.coalesce(two, values, shape, backend=backend).values, sums)
    assert_bits(coo.indices[0] * 2 + coo.indices[1], indices[0])


def test_results_outlive_the_next_call(backend):
    """Scratch memory that is kept between calls must not be part of a result."""
    first, second = (_cases.case(seed, (4000,), (), 30_000, "float32") for seed in (1, 2))
    for options in ({"return_inverse": True, "return_counts": True}, {"return_counts": True}):
        coo, *maps = sparsekit.coalesce(*first, **options, backend=backend)
        kept = [array.copy() for array in (coo.indices, coo.values, *maps)]
        sparsekit.coalesce(*second, **options, backend=backend)
        for array, copy in zip((coo.indices, coo.values, *maps), kept, strict=True):
            assert_bits(array, copy)


@pytest.mark.parametrize("dtype", _cases.REALS + _cases.COMPLEX)
@pytest.mark.parametrize("n", [2, 31, 32, 33, 64, 65, 1023, 1024, 1025, 32**3 + 33])
def test_order_of_a_sum(backend, n, dtype):
    # The hot coordinate lies between others, in and out of turn: its run starts anywhere, in the order of the input.
    values = _cases.numbers(np.random.default_rng(n), (n + 3, 2), dtype)
    index = np.full(n + 3, 5)
    index[[0, n // 2, -1]] = 9, 2, 7
    indices, sums, _, _ = _oracles.coalesce(index, values)
    for reduce in ("sum", "mean", "prod"):
        with np.errstate(all="ignore"):
            expected = _oracles.coalesce(index, values, reduce)[1]
            coo = sparsekit.coalesce(index, values, (10, 2), reduce=reduce, backend=backend)
            lone = sparsekit.coalesce(index, values[:, 0], (10,), reduce=reduce, backend=backend)
        assert_coo(coo, indices, expected, (10, 2), functools.partial(assert_reduced, reduce=reduce))
        assert_coo(lone, indices, expected[:, 0], (10,), functools.partial(assert_reduced, reduce=reduce))
    if n > 32 and dtype in ("float64", "complex128"):
        flat = [functools.reduce(np.add, values[index == 5, j]) for j in (0, 1)]
        assert n < 65 or np.any(flat != sums[1])  # left to right would be told apart


def test_signed_zero(backend):
    for n in (1, 2, 40, 2000):
        zeros = np.full(n, -0.0, np.float32)
        assert np.signbit(sparsekit.coalesce(np.zeros(n, int), zeros, (1,), backend=backend).values[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_sums_are_rounded_once(backend, dtype):
    rng = np.random.default_rng(5)
    values = np.abs(_cases.numbers(rng, 20_000, dtype))
    index = rng.integers(0, 50, 20_000)
    coo = sparsekit.coalesce(index, values, (50,), backend=backend)
    for i in range(50):
        exact = Fraction(_oracles.exact_sum(values[index == i]))
        ulp = Fraction(2) ** math.floor(math.log2(exact)) / 2 ** ml_dtypes.finfo(values.dtype).nmant
        slack = Fraction(1, 1000) if dtype == "float32" else Fraction(1, 10)  # the wide type's own rounding
        assert abs(Fraction(float(coo.values[i])) - exact) <= ulp * (Fraction(1, 2) + slack)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("distribution", ["uniform", "zipf", "all-equal"])
def test_backends_agree_to_the_bit(both_backends, dtype, distribution):
    case = _cases.case(2, (3000, 40), (), 400_000, dtype, distribution)
    one, two = (sparsekit.coalesce(*case, backend=name) for name in both_backends)
    assert_coo(one, two.indices, two.values, two.shape)


# Shapes, layouts, forms of call.
@pytest.mark.parametrize("dims", _cases.HUGE)
@pytest.mark.parametrize("index_dtype", ["int64", "uint64", "int8"])
def test_products_beyond_a_word(backend, dims, index_dtype):
    case = _cases.case(4, dims, (), 300, "int64", index_dtype=index_dtype)
    indices, values, _, _ = _oracles.coalesce(case.indices, case.values)
    assert_coo(sparsekit.coalesce(*case, backend=backend), indices, values, dims)
    assert sparsekit.is_coalesced(indices, dims, backend=backend)


def test_keys_equal_modulo_2_64_stay_apart(backend):
    # In shape (4, 2**62, 8) the flat keys of (0, 1, 0) and (2, 1, 0) differ by 2**66, those of (0,0,0) and (2,0,0) too.
    indices = np.array([[2, 0, 2, 0, 1], [1, 1, 0, 0, 2**62 - 1], [0, 0, 0, 0, 7]])
    coo = sparsekit.coalesce(indices, np.arange(5), (4, 2**62, 8), backend=backend)
    assert_coo(coo, indices[:, [3, 1, 4, 2, 0]], np.array([3, 1, 4, 2, 0]), (4, 2**62, 8))


@pytest.mark.parametrize("layout", _cases.LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "int16"])
def test_layouts(backend, layout, dtype):
    case = _cases.case(6, (9, 11), (3,), 120, dtype, index_dtype="int32")
    indices, values = _cases.LAYOUTS[layout](case.indices), _cases.LAYOUTS[layout](case.values)
    flags = indices.flags.writeable, values.flags.writeable
    coo, inverse = sparsekit.coalesce(indices, values, case.shape, return_inverse=True, backend=backend)
    expected = _oracles.coalesce(case.indices, case.values)
    assert_coo(coo, expected[0], expected[1], case.shape)
    assert_bits(inverse, expected[2])
    assert_bits(native(indices), case.indices)
    assert_bits(native(values), case.values)
    assert flags == (indices.flags.writeable, values.flags.writeable)


def test_zero_stride(backend):
    indices = np.broadcast_to(np.array([[1], [2]]), (2, 50))
    values = np.broadcast_to(np.float32(0.5), (50, 3))
    coo = sparsekit.coalesce(indices, values, (4, 4, 3), backend=backend)
    assert_coo(coo, np.array([[1], [2]]), np.full((1, 3), 25, np.float32), (4, 4, 3))


def test_forms_of_the_result(backend):
    indices, values = np.array([3, 1, 3]), np.array([1.0, 2.0, 4.0])
    call = functools.partial(sparsekit.coalesce, indices, values, (5,), backend=backend)
    assert_coo(call(), np.array([[1, 3]]), np.array([2.0, 5.0]), (5,))  # 1-D in, always 2-D out
    coo, inverse = call(return_inverse=True)
    assert_bits(inverse, np.array([1, 0, 1]))
    coo, counts = call(return_counts=True)
    assert_bits(counts, np.array([1, 2]))
    again = sparsekit.coalesce(*coo, backend=backend)
    assert_coo(again, coo.indices, coo.values, coo.shape)
    for out, given_in in itertools.product((again.indices, again.values), (coo.indices, coo.values)):
        assert not np.shares_memory(out, given_in)  # a caller may write into the result
    assert again.values.flags.writeable and again.indices.flags.writeable


def test_explicit_zeros_are_kept(backend):
    coo = sparsekit.coalesce(np.array([1, 0, 1]), np.array([1.0, 0.0, -1.0]), (2,), backend=backend)
    assert_coo(coo, np.array([[0, 1]]), np.array([0.0, 0.0]), (2,))


def test_min_and_max_propagate_nan(backend):
    index, values = np.array([0, 0, 0, 1, 1]), np.array([1.0, np.nan, 2.0, -np.inf, 3.0])
    assert_equal(sparsekit.coalesce(index, values, (2,), reduce="min", backend=backend).values, np.array([np.nan, -np.inf]))
    assert_equal(sparsekit.coalesce(index, values, (2,), reduce="max", backend=backend).values, np.array([np.nan, 3.0]))


# Peers.
@given(case=_cases.cases(dtypes=("int32", "float64")))
def test_torch_agrees(backend, torch, case):
    with np.errstate(over="ignore"):
        scale = np.sum(np.abs(case.values.astype(float)))
    if math.prod(max(n, 1) for n in case.shape) >= 2**63 or not np.isfinite(scale):
        return  # torch refuses the shape, or meets infinities in another order
    peer = torch.sparse_coo_tensor(case.indices.astype(np.int64), torch.tensor(case.values), case.shape, check_invariants=True)
    peer = peer.coalesce()
    coo = sparsekit.coalesce(*case, backend=backend)
    np.testing.assert_array_equal(coo.indices.astype(np.int64), peer.indices().numpy())
    assert_close(coo.values, peer.values().numpy(), atol=scale * 2.0**-46 if case.values.dtype.kind == "f" else 0)


@pytest.mark.parametrize("distribution", _cases.DISTRIBUTIONS)
def test_scipy_agrees(backend, distribution):
    sparse = pytest.importorskip("scipy.sparse")
    case = _cases.case(8, (500, 700), (), 20_000, "int64", distribution)
    peer = sparse.coo_array((case.values, tuple(case.indices)), case.shape)
    peer.sum_duplicates()
    order = np.lexsort((peer.col, peer.row))
    coo = sparsekit.coalesce(*case, backend=backend)
    assert_bits(coo.values, peer.data[order])
    np.testing.assert_array_equal(coo.indices, np.stack([peer.row[order], peer.col[order]]))


# is_coalesced.
@given(case=_cases.cases(dtypes=("bool",), max_nnz=8))
def test_is_coalesced(backend, case):
    dims = case.shape[: len(case.indices)]
    unique = _oracles.coalesce(case.indices, case.values)[0]
    for indices in (case.indices, unique, unique[:, ::-1]):
        assert sparsekit.is_coalesced(indices, backend=backend) is _oracles.is_coalesced(indices)
        assert sparsekit.is_coalesced(indices, dims, backend=backend) is _oracles.is_coalesced(indices)


def test_is_coalesced_reads_to_the_end(backend):
    indices = np.arange(300_000)
    assert sparsekit.is_coalesced(indices, backend=backend)
    for wrong in (-1, -2):  # the last entry repeats, or falls back
        spoilt = indices.copy()
        spoilt[-1] += wrong
        assert not sparsekit.is_coalesced(spoilt, backend=backend)
    big = np.array([2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    assert sparsekit.is_coalesced(big, backend=backend)
    assert not sparsekit.is_coalesced(big[::-1], backend=backend)
