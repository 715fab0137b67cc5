"""sparse_adam_step on arrays: the formula row by row, to the bit; torch's optimizer; what it may and may not touch."""

import itertools
import tracemalloc

import _cases
import _oracles
import numpy as np
import pytest
from _tolerance import assert_bits, assert_close, native
from hypothesis import given
from hypothesis import strategies as st

import sparsekit


def problem(seed, dims, dense, nnz, dtype, distribution="zipf", index_dtype="int64", special=False):
    """(param, exp_avg, exp_avg_sq, indices, values)."""
    rng = np.random.default_rng(seed)
    nnz = 0 if 0 in dims else nnz
    state = np.float64 if dtype == "float64" else np.float32
    shape = (*dims, *dense)
    param = np.asarray(_cases.numbers(rng, shape, dtype, special))
    m = np.asarray(rng.standard_normal(shape) * 0.1).astype(state)
    v = np.asarray(np.square(rng.standard_normal(shape))).astype(state)
    values = _cases.numbers(rng, (nnz, *dense), dtype, special)
    return [param, m, v, _cases.coordinates(rng, dims, nnz, distribution, index_dtype), values]


def check(arrays, backend, **options):
    """One step against the oracle, to the bit, the untouched rows included; inputs unchanged. Returns the result."""
    expected = _oracles.adam(*arrays, **options)
    param, m, v, indices, values = (array.copy() for array in arrays)
    with np.errstate(all="ignore"):
        assert sparsekit.sparse_adam_step(param, m, v, indices, values, **options, backend=backend) is None
    for got, want in zip((param, m, v, indices, values), (*expected, *arrays[3:]), strict=True):
        assert_bits(got, want)
    return param, m, v


@given(
    seed=st.integers(0, 2**32 - 1),
    dims=st.lists(st.sampled_from([0, 1, 3, 8, 50]), max_size=3).map(tuple),
    dense=st.lists(st.sampled_from([0, 1, 3, 16, 33]), max_size=2).map(tuple),
    nnz=st.integers(0, 120),
    dtype=st.sampled_from(_cases.REALS),
    distribution=st.sampled_from(_cases.DISTRIBUTIONS),
    index_dtype=st.sampled_from(_cases.INTEGERS),
    special=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "step": st.sampled_from([1, 2, 1000, 10**9]),
            "lr": st.sampled_from([1e-3, 0.0, 0.5]),
            "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.0), (0.5, 0.99)]),
            "eps": st.sampled_from([1e-8, 0.0, 1.0]),
            "weight_decay": st.sampled_from([0.0, 0.1]),
            "maximize": st.booleans(),
        }
    ),
)
def test_every_option(backend, seed, dims, dense, nnz, dtype, distribution, index_dtype, special, options):
    check(problem(seed, dims, dense, nnz, dtype, distribution, index_dtype, special), backend, **options)


@pytest.mark.parametrize("dtype", _cases.REALS)
@pytest.mark.parametrize("distribution", _cases.DISTRIBUTIONS)
def test_large_steps(backend, dtype, distribution):
    check(problem(1, (3000,), (5,), 20_000, dtype, distribution), backend, step=3, weight_decay=0.01)


@pytest.mark.parametrize("dtype", _cases.REALS)
def test_steps_follow_each_other(backend, dtype):
    arrays = problem(2, (40,), (6,), 60, dtype)
    for step in range(1, 6):
        fresh = problem(100 + step, (40,), (6,), 60, dtype)
        arrays = [*check([*arrays[:3], *fresh[3:]], backend, step=step), None, None]


def test_backends_agree_to_the_bit(both_backends):
    for dtype in _cases.REALS:
        arrays = problem(3, (20_000,), (16,), 60_000, dtype)
        one, two = ([a.copy() for a in arrays] for _ in range(2))
        for name, mine in zip(both_backends, (one, two), strict=True):
            sparsekit.sparse_adam_step(*mine, step=7, weight_decay=0.1, backend=name)
        for a, b in zip(one, two, strict=True):
            assert_bits(a, b)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("dtype", "rounds"), [("float64", 50), ("float32", 1)])
def test_torch_agrees(backend, torch, dtype, rounds, maximize):
    """float64 to 1e-12 over 50 steps, float32 to a few ulp in one (without duplicates: torch sums them in float32)."""
    param, _, _, _, _ = problem(5, (30,), (4,), 0, dtype)
    m, v = np.zeros_like(param), np.zeros_like(param)
    weight = torch.nn.Parameter(torch.tensor(param))
    peer = torch.optim.SparseAdam([weight], lr=0.01, betas=(0.8, 0.99), eps=1e-7, maximize=maximize)
    for step in range(1, rounds + 1):
        _, _, _, indices, values = problem(step, (30,), (4,), 25, dtype)
        if dtype == "float32":
            indices = np.random.default_rng(step).permutation(30)[None, :25]
        weight.grad = torch.sparse_coo_tensor(torch.tensor(indices), torch.tensor(values), (30, 4), check_invariants=True)
        peer.step()
        options = {"step": step, "lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-7, "maximize": maximize}
        sparsekit.sparse_adam_step(param, m, v, indices, values, **options, backend=backend)
    state = peer.state[weight]
    for ours, torchs in ((param, weight), (m, state["exp_avg"]), (v, state["exp_avg_sq"])):
        if dtype == "float64":
            np.testing.assert_allclose(ours, torchs.detach().numpy(), rtol=1e-12, atol=1e-14)
        else:
            assert_close(ours, torchs.detach().numpy(), atol=1e-9)


def test_duplicates_are_summed_before_the_one_update(backend):
    arrays = [np.zeros((3, 1)) for _ in range(3)]
    once, twice = ([a.copy() for a in arrays] for _ in range(2))
    sparsekit.sparse_adam_step(*once, np.array([1]), np.array([[3.0]]), step=1, backend=backend)
    sparsekit.sparse_adam_step(*twice, np.array([1, 1]), np.array([[1.0], [2.0]]), step=1, backend=backend)
    for a, b in zip(once, twice, strict=True):
        assert_bits(a, b)


def test_weight_decay_is_on_touched_rows_only(backend):
    param = np.full((4, 2), 2.0)
    options = {"step": 1, "lr": 0.1, "weight_decay": 0.5, "backend": backend}
    arrays = [param, np.zeros((4, 2)), np.zeros((4, 2))]
    sparsekit.sparse_adam_step(*arrays, np.array([2]), np.zeros((1, 2)), **options)  # a zero gradient: all is decay
    assert np.all(param[[0, 1, 3]] == 2.0) and np.all(param[2] < 2.0)
    np.testing.assert_allclose(arrays[1][2], 0.1 * 0.5 * 2.0, rtol=1e-15)


def test_float16_overflow_after_the_sum(backend):
    """60000 + 60000 - 60000 fits, its halfway sum does not: float16 gradients are added in float32."""
    arrays = [np.zeros((2, 1), np.float16), np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32)]
    values = np.float16([[60000], [60000], [-60000]])
    sparsekit.sparse_adam_step(*arrays, np.array([0, 0, 0]), values, step=1, backend=backend)
    assert all(np.all(np.isfinite(a)) for a in arrays) and arrays[1][0, 0] == np.float32(60000) * np.float32(1 - 0.9)


@pytest.mark.parametrize("layout", _cases.LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_layouts_of_the_gradient(backend, layout, dtype):
    arrays = problem(6, (9,), (4,), 30, dtype)
    expected = _oracles.adam(*arrays, step=2)
    indices, values = (_cases.LAYOUTS[layout](a) for a in arrays[3:])
    sparsekit.sparse_adam_step(*arrays[:3], indices, values, step=2, backend=backend)
    for got, want in zip(arrays[:3], expected, strict=True):
        assert_bits(got, want)
    assert_bits(native(values), arrays[4])


@pytest.mark.parametrize("layout", [name for name in _cases.LAYOUTS if name != "read-only"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_layouts_of_the_outputs(backend, layout, dtype):
    """Any writeable array that overlaps nothing is updated in place, itself and nothing beside it."""
    arrays = problem(7, (9,), (4,), 30, dtype)
    expected = _oracles.adam(*arrays, step=2)
    for laid_out in itertools.product((False, True), repeat=3):
        outputs = [_cases.LAYOUTS[layout](a) if there else a.copy() for a, there in zip(arrays[:3], laid_out, strict=True)]
        sparsekit.sparse_adam_step(*outputs, *arrays[3:], step=2, backend=backend)
        for got, want in zip(outputs, expected, strict=True):
            assert_bits(native(got), want)
    wider = np.zeros((9, 9), dtype)
    wider[:, 1::2] = arrays[0]
    sparsekit.sparse_adam_step(wider[:, 1::2], *(a.copy() for a in arrays[1:3]), *arrays[3:], step=2, backend=backend)
    assert not wider[:, ::2].any()


def test_states_may_be_memory_maps(backend, tmp_path):
    arrays = problem(8, (50,), (3,), 40, "float32")
    expected = _oracles.adam(*arrays, step=1)
    maps = []
    for i, array in enumerate(arrays[1:3]):
        maps.append(np.memmap(tmp_path / f"{i}", array.dtype, "w+", shape=array.shape))
        maps[-1][:] = array
    sparsekit.sparse_adam_step(arrays[0], *maps, *arrays[3:], step=1, backend=backend)
    maps[0].flush()
    assert_bits(np.fromfile(tmp_path / "0", np.float32).reshape(50, 3), expected[1])


def test_extra_memory_does_not_grow_with_the_table(backend):
    arrays = [np.zeros((500_000, 8), np.float32) for _ in range(3)]  # 16 MB each
    call = (*arrays, np.array([3, 499_999, 3]), np.ones((3, 8), np.float32))
    sparsekit.sparse_adam_step(*call, step=1, backend=backend)
    tracemalloc.start()
    sparsekit.sparse_adam_step(*call, step=2, backend=backend)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_unchecked_call_gives_the_same(backend):
    arrays = problem(9, (30,), (4,), 50, "float32")
    expected = _oracles.adam(*arrays, step=1)
    sparsekit.sparse_adam_step(*arrays, step=1, check=False, backend=backend)
    for got, want in zip(arrays[:3], expected, strict=True):
        assert_bits(got, want)
