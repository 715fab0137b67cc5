"""Stochastic rounding to 16 bits: unbiased, exact where it can be, and decided by seed, step, array and position alone."""

import _cases
import numpy as np
import pytest
from _tolerance import assert_bits

import sparsekit


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("value", [1.0 + 2.0**-13, -3.0e-3, 3.3 * 2.0**-24, 2.0**-26, 1e5])
def test_stochastic_rounding_is_unbiased_and_hits_the_neighbours(backend, dtype, value):
    """p - 1 * g with p = 0 is -g in float32; the mean of many roundings is it again."""
    n, kind = 20_000, _cases.dtype_of(dtype)
    value = float(np.float32(value))
    with np.errstate(over="ignore"):
        nearest = np.float32(value).astype(kind)
    buffer = np.full((n, 1), value, "f4")  # exact in float32, which a 16-bit gradient would not be
    param = np.zeros((n, 1), kind)
    options = {"momentum": 0.5, "momentum_buffer": buffer, "rounding": "stochastic", "seed": 1, "backend": backend}
    sparsekit.sparse_sgd_step(param, np.arange(n), np.zeros((n, 1), kind), step=2, lr=2.0, **options)
    got = -param.astype(np.float64).ravel()
    if dtype == "float16" and value > 65536:
        assert np.all(np.isinf(got))
        return
    spacing = abs(float(np.nextafter(nearest, kind.type(np.inf))) - float(nearest)) if np.isfinite(nearest) else 0
    assert len(set(got)) == 2 or value == float(nearest)
    assert np.all(np.abs(got - value) < spacing)
    assert abs(got.mean() - value) < 4 * spacing / np.sqrt(n)


@pytest.mark.filterwarnings("ignore:invalid value encountered in isnan:RuntimeWarning")  # signalling NaN
def test_stochastic_rounding_keeps_what_is_exact(backend):
    for dtype in ("float16", "bfloat16"):
        kind = _cases.dtype_of(dtype)
        every = np.arange(1 << 16, dtype=np.uint16).view(kind)[:, None]
        param = every.copy()
        with np.errstate(all="ignore"):
            sparsekit.sparse_sgd_step(
                param, np.arange(1 << 16), np.zeros_like(every), lr=0.0, rounding="stochastic", seed=9, backend=backend
            )
        assert_bits(param, every)  # infinities, NaN, subnormals and both zeros included


def test_stochastic_rounding_at_the_upper_end(backend):
    """Between the largest float16 and 2**16 the choice is between it and infinity."""
    value, n = 65504 + 8.0, 4000
    param, buffer = np.zeros((n, 1), np.float16), np.full((n, 1), value, "f4")
    options = {"momentum": 0.5, "momentum_buffer": buffer, "rounding": "stochastic", "seed": 1, "backend": backend}
    sparsekit.sparse_sgd_step(param, np.arange(n), np.zeros((n, 1), np.float16), step=2, lr=2.0, **options)
    assert set(param.ravel().tolist()) == {-65504.0, -np.inf}
    assert abs(np.isinf(param).mean() - 0.25) < 0.03


def test_what_is_drawn_depends_on_seed_step_array_and_position_only(backend):
    def run(seed, step, rows):
        param = np.ones((64, 4), np.float16)
        arrays = [np.full((64, 4), 0.1, np.float16) for _ in range(2)]
        options = {"rounding": "stochastic", "seed": seed, "lr": 1e-4, "backend": backend}
        values = np.full((len(rows), 4), 0.3, np.float16)
        sparsekit.sparse_adam_step(param, *arrays, rows, values, step=step, **options)
        return [param, *arrays]

    rows = np.arange(64)
    base = run(1, 3, rows)
    for a, b in zip(base, run(1, 3, rows[::-1].copy()), strict=True):
        assert_bits(a, b)
    for a, b in zip(base, run(1, 3, rows[20:30]), strict=True):
        assert_bits(a[20:30], b[20:30])
    assert not np.array_equal(base[0], run(2, 3, rows)[0])
    assert not np.array_equal(base[0] == base[0].max(), base[1] == base[1].max())
