"""topk and topk_mask against a sort of (magnitude, position), on every backend."""

import functools
import itertools
import math

import _cases
import _oracles
import numpy as np
import pytest
from _tolerance import assert_bits, assert_coo, assert_equal, native, to_numpy
from hypothesis import given
from hypothesis import strategies as st

import sparsekit

NAN, INF = np.nan, np.inf


def check(x, k, backend, **options):
    """topk, topk_mask and sorted=True of one array or a list against the oracle."""
    arrays = x if isinstance(x, list) else [x]
    expected = _oracles.topk(arrays, k)
    for order in (False, True):
        coos = sparsekit.topk(x, k, sorted=order, backend=backend, **options)
        coos = coos if isinstance(x, list) else [coos]
        assert len(coos) == len(arrays)
        for coo, array, positions in zip(coos, arrays, expected, strict=True):
            at = np.array(positions if order else sorted(positions), np.int64)
            where = np.stack(np.unravel_index(at, array.shape)) if array.ndim else np.empty((0, at.size), np.int64)
            assert_coo(coo, where.astype(np.int64).reshape(array.ndim, at.size), array.ravel()[at], array.shape)
    masks = sparsekit.topk_mask(x, k, backend=backend, **options)
    for mask, array, positions in zip(masks if isinstance(x, list) else [masks], arrays, expected, strict=True):
        want = np.zeros(array.size, bool)
        want[positions] = True
        assert_bits(mask, want.reshape(array.shape))


def tied(rng, shape, dtype):
    """Few distinct magnitudes with both signs, zeros of both signs, NaN of both signs, infinities: mostly ties."""
    if dtype in _cases.REALS:
        pick = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, INF, -INF, NAN, -NAN, 1e-6, -1e-6])
        with np.errstate(all="ignore"):
            return rng.choice(pick, shape).astype(_cases.dtype_of(dtype))
    if dtype in _cases.COMPLEX:
        return rng.choice(np.array([0, 3 + 4j, -5, 5j, 4 - 3j, 6 + 8j, -10j]), shape).astype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    return rng.choice(np.array([0, 1, 2, info.min, info.min + 1, info.max, info.max - 1], dtype), shape)


@st.composite
def problems(draw):
    """(list of arrays of one dtype, k): untied or mostly tied values."""
    dtype = draw(st.sampled_from(_cases.DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = draw(st.lists(st.lists(st.sampled_from([0, 1, 2, 3, 7, 33]), max_size=3).map(tuple), min_size=1, max_size=4))
    if dtype in _cases.COMPLEX or draw(st.booleans()):
        arrays = [tied(rng, shape, dtype) for shape in shapes]
    else:
        arrays = [_cases.numbers(rng, shape, dtype, special=draw(st.booleans())) for shape in shapes]
    arrays = [np.asarray(array) for array in arrays]
    total = sum(array.size for array in arrays)
    return arrays, draw(st.sampled_from([0, 1, total // 3, total // 2, total - 1, total]).filter(lambda k: 0 <= k <= total))


@given(problem=problems())
def test_one_array_or_many(backend, problem):
    arrays, k = problem
    before = [array.copy() for array in arrays]
    check(arrays, k, backend)
    for array, copy in zip(arrays, before, strict=True):
        check(array, min(k, array.size), backend)
        assert_bits(array, copy)


@functools.cache
def large(kind, dtype, n=100_000):
    """(values, their positions by magnitude)."""
    rng = np.random.default_rng(9)
    x = _cases.numbers(rng, n, dtype)
    if kind == "constant":
        x[:] = x[0]
    elif kind == "two values":
        x[:] = np.where(rng.random(n) < 0.9, 1, 2)
    elif kind == "sorted":
        x = np.sort(x)
    elif kind == "reversed":
        x = np.sort(x)[::-1].copy()
    elif kind == "outlier at the end":
        x = np.full(n, 1).astype(x.dtype)
        x[-3:] = 3
    elif kind == "sparse":
        x[rng.random(n) < 0.999] = 0
    return x, _oracles.topk([x], n)[0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint64"])
@pytest.mark.parametrize("kind", ["random", "constant", "two values", "sorted", "reversed", "outlier at the end", "sparse"])
def test_1e5_values(backend, kind, dtype):
    # Beyond any sample and any block: the shortcut of a guessed threshold must fall back to the exact answer.
    x, order = large(kind, dtype)
    for k in (1, 3, 1000, 40_000, x.size - 1):
        coo = sparsekit.topk(x, k, backend=backend)
        at = np.sort(order[:k])
        assert_coo(coo, at[None], x[at], x.shape)
    cut = [x[:10], x[10:60_000].reshape(-1, 10), x[60_000:]]  # as if concatenated
    masks = sparsekit.topk_mask(cut, 1000, backend=backend)
    assert_bits(np.concatenate([mask.ravel() for mask in masks]), np.isin(np.arange(x.size), order[:1000]))


@pytest.mark.parametrize("kind", ["random", "with NaN", "all large ones together", "wave", "half are equal", "int8"])
def test_2e6_values(backend, kind):
    """Beyond any sample, any block and one thread's share; adversarial to a threshold that was guessed."""
    rng = np.random.default_rng(4)
    n = 2_000_000 if backend == "numba" else 200_000  # a sort has no shortcut to go wrong; CUDA's tiles are small
    x = rng.standard_normal(n).astype(np.float32)
    if kind == "with NaN":
        x[rng.integers(0, n, 500)] = NAN
        x[rng.integers(0, n, 500)] = -INF
    elif kind == "all large ones together":
        x[n // 3 : n // 3 + 10_000] *= 1000
    elif kind == "wave":
        x = np.sin(np.arange(n) / 4096).astype(np.float32)
    elif kind == "half are equal":
        x[rng.random(n) < 0.5] = -1.5
    elif kind == "int8":
        x = rng.integers(-128, 128, n).astype(np.int8)
    magnitude = np.where(np.isnan(x), INF, np.abs(x.astype(np.float64)))
    order = np.lexsort((-magnitude, ~np.isnan(x)))  # stable: the lowest position wins
    cut = [x[:777], x[777:777], x[777:100_777].reshape(1000, 1, 100), x[100_777:]]
    for k in (1, 100, 30_000, 6 * n // 10):
        at = np.sort(order[:k])
        assert_bits(sparsekit.topk(x, k, backend=backend).indices, at[None])
        parts = sparsekit.topk(cut, k, backend=backend)
        assert_bits(np.concatenate([part.values for part in parts]), x[at])


@pytest.mark.parametrize("dtype", _cases.REALS)
def test_nan_and_zero_and_ties(backend, dtype):
    dtype = _cases.dtype_of(dtype)
    orders = itertools.permutations([NAN, -NAN, INF, -3.0, 3.0], 5)
    for values in itertools.islice(orders, 0, None, 7 if backend == "cupy-host" else 1):  # there each call takes a while
        x = np.array(values, dtype)
        for k in (1, 2, 3, 4):
            check(x, k, backend)
    signed_nan = np.array([NAN, 5, NAN, 6], dtype)
    signed_nan.view(f"u{dtype.itemsize}")[2] ^= 1 << (8 * dtype.itemsize - 1)
    signed_nan.view(f"u{dtype.itemsize}")[0] ^= 1  # another payload: still a tie
    check(signed_nan, 1, backend)
    check(np.array([-0.0, 0.0, 0.0, -0.0], dtype), 2, backend)
    check(np.array([0.0, -0.0, 1e-7, -1e-7], dtype), 3, backend)


@pytest.mark.parametrize("dtype", _cases.INTEGERS)
def test_extreme_integers(backend, dtype):
    info = np.iinfo(dtype)
    x = np.array([info.max, info.min, 0, info.min, info.max], dtype)
    for k in range(6):
        check(x, k, backend)
    if dtype == "int64":  # neighbours that float64 cannot tell apart
        check(np.array([2**62, -(2**62) - 1, 2**62 + 1, 2**53 + 1, 2**53]), 1, backend)
    if dtype == "uint64":
        check(np.array([2**64 - 2, 2**64 - 1, 2**63], np.uint64), 1, backend)


def test_mixed_floats_compare_by_exact_value(backend):
    third = 1 / 3
    arrays = [
        np.array([third, 1.0], np.float16),
        np.array([third, -1.0], np.float32),
        np.array([[third], [1 + 2.0**-40]], np.float64),
        np.array([third, 1.0], _oracles.BFLOAT16),
    ]
    for size in (2, 3, 4):
        for chosen in itertools.islice(itertools.permutations(arrays, size), 0, None, 5 if backend == "cupy-host" else 1):
            for k in (1, 2, 3, 2 * size - 1):
                check(list(chosen), k, backend)


def test_mixed_kinds_of_numbers_are_refused(backend):
    for pair in (
        [np.ones(2), np.ones(2, int)],
        [np.ones(2, np.int8), np.ones(2, np.float32)],
        [np.ones(2), np.ones(2, bool)],
    ):
        with pytest.raises(TypeError):
            sparsekit.topk(pair, 1, backend=backend)
        with pytest.raises(TypeError):
            sparsekit.topk_mask(pair, 1, backend=backend)


@pytest.mark.parametrize(("ratio", "n"), [(0, 5), (0.0, 7), (0.1, 10), (0.2, 7), (1e-9, 7), (0.5, 7), (1, 3), (1.0, 7), (0.3, 0)])
def test_ratio_rounds_up(backend, ratio, n):
    x = np.arange(n, dtype=np.float32)
    k = math.ceil(ratio * n)
    assert sparsekit.topk(x, ratio=ratio, backend=backend).nnz == k
    assert np.count_nonzero(sparsekit.topk_mask(x, ratio=ratio, backend=backend)) == k
    parts = sparsekit.topk([x, x], ratio=ratio, backend=backend)
    assert sum(part.nnz for part in parts) == math.ceil(ratio * 2 * n)


def test_global_not_per_array(backend):
    small, big = np.ones(100, np.float32), np.arange(10, 14, dtype=np.float32)
    parts = sparsekit.topk([small, big, small], 5, backend=backend)
    assert [part.nnz for part in parts] == [1, 4, 0]  # ties go to the earlier array
    assert parts[0].indices.tolist() == [[0]]


def test_forms(backend):
    assert sparsekit.topk([], 0, backend=backend) == []
    assert sparsekit.topk_mask([], 0, backend=backend) == []
    x = np.array([[1.0, -3.0], [2.0, 0.0]])
    assert isinstance(sparsekit.topk((x, x), 1, backend=backend), list)
    assert_coo(sparsekit.topk(x, np.int64(2), backend=backend), np.array([[0, 1], [1, 0]]), np.array([-3.0, 2.0]), (2, 2))
    coo = sparsekit.topk(x, 4, backend=backend)
    coo.values[:] = 0  # the result is the caller's own
    assert x[0, 1] == -3.0
    assert_coo(sparsekit.topk(np.array(-3), 1, backend=backend), np.empty((0, 1), int), np.array([-3]), ())


@pytest.mark.parametrize("layout", _cases.LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "complex64"])
def test_layouts(backend, layout, dtype):
    if layout == "big-endian" and dtype == "bfloat16":
        pytest.skip("ml_dtypes has no big-endian bfloat16")
    x = tied(np.random.default_rng(1), (13, 17), dtype)  # mostly ties: order in memory must not show
    given_in = _cases.LAYOUTS[layout](x)
    positions = _oracles.topk([x], 40)[0]
    coo = sparsekit.topk(given_in, 40, sorted=True, backend=backend)
    at = np.unravel_index(positions, x.shape)
    assert_bits(coo.indices, np.stack(at).astype(np.int64))
    assert_bits(np.asarray(coo.values, x.dtype), x[at])
    assert coo.values.dtype == x.dtype  # native byte order
    want = np.zeros(x.size, bool)
    want[positions] = True
    assert_bits(sparsekit.topk_mask(given_in, 40, backend=backend), want.reshape(x.shape))
    assert_bits(native(given_in), x)


def test_zero_stride(backend):
    check(np.broadcast_to(np.float32([[1.0], [-2.0]]), (2, 30)), 31, backend)


def test_torch_agrees_without_ties(backend, torch):
    x = torch.randperm(50_000).to(torch.float32) - 25_000.5
    peer = torch.topk(x.abs(), 500)
    coo = sparsekit.topk(x, 500, sorted=True, backend=backend)
    assert isinstance(coo.values, torch.Tensor) and isinstance(coo.indices, torch.Tensor)
    magnitudes = np.abs(to_numpy(coo.values))
    assert_equal(magnitudes, peer.values.numpy())
    chosen = to_numpy(coo.indices)[0]
    twins = np.flatnonzero(np.diff(magnitudes) == 0)  # each magnitude comes twice, with both signs
    assert np.all(chosen[twins] < chosen[twins + 1])
    mask = sparsekit.topk_mask(x, 500, backend=backend)
    assert mask.dtype == torch.bool and int(mask.sum()) == 500
