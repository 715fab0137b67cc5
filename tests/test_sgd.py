"""sparse_sgd_step: torch's optimizers, the size of the state. All modes and errors: test_optim.py."""

import gc
import tracemalloc

import numpy as np
import pytest
from _runs import ROWS, Run, gradients, rates, summed

import sparsekit


def dense(torch, indices, values):
    out = torch.zeros(ROWS, values.shape[1], dtype=torch.float64)
    for row, g in summed(indices, values).items():
        out[row] = torch.tensor(g)
    return out


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.8}, {"momentum": 0.8, "dampening": 0.3}, {"momentum": 0.8, "nesterov": True}]
)
def test_exact_moments_are_dense_torch(backend, torch, options, maximize):
    """torch.optim.SGD on the dense gradient, zeros and all, with rates that change."""
    start = np.random.default_rng(0).standard_normal((ROWS, 3))
    weight = torch.nn.Parameter(torch.tensor(start))
    peer = torch.optim.SGD([weight], lr=1.0, maximize=maximize, **options)
    run = Run("sgd", start, "float64", backend, moments="exact", maximize=maximize, **options)
    for gradient, lr in zip(gradients(3, 60, 3), rates(60), strict=True):
        weight.grad, peer.param_groups[0]["lr"] = dense(torch, *gradient), lr
        peer.step()
        run.step(*gradient, lr)
    run.flush()
    np.testing.assert_allclose(run.param, weight.detach().numpy(), rtol=1e-9, atol=1e-12)
    if options:
        np.testing.assert_allclose(run.arrays["momentum_buffer"], peer.state[weight]["momentum_buffer"].numpy(), rtol=1e-9)


def test_plain_is_torch_on_sparse_gradients(backend, torch):
    start = np.random.default_rng(0).standard_normal((ROWS, 3))
    weight = torch.nn.Parameter(torch.tensor(start))
    peer, run = torch.optim.SGD([weight], lr=0.1), Run("sgd", start, "float64", backend)
    for indices, values in gradients(4, 20, 3):
        weight.grad = torch.sparse_coo_tensor(torch.tensor(indices[None]), torch.tensor(values), (ROWS, 3))
        peer.step()
        run.step(indices, values, 0.1)
    np.testing.assert_allclose(run.param, weight.detach().numpy(), rtol=1e-12)


def test_b2_38_the_momentum_buffer_does_not_grow(backend):
    """pytorch#3139: a sparse momentum buffer collected entries until memory ran out; this one is dense and updated in place."""
    run = Run("sgd", np.zeros((1000, 8)), "float64", backend, momentum=0.9, steps=50)
    buffer = run.arrays["momentum_buffer"]
    rng = np.random.default_rng(0)
    batches = [(rng.integers(0, 1000, 50), rng.standard_normal((50, 8))) for _ in range(30)]
    run.step(*batches[0], 0.1)
    tracemalloc.start()
    for batch in batches:
        run.step(*batch, 0.1)
    gc.collect()
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run.arrays["momentum_buffer"] is buffer
    assert now < 60_000 and peak < 200_000  # 30 gradients kept would be 100,000


def test_a_row_that_sat_out_nothing_is_not_moved_by_its_buffer(backend):
    """Not even by 0 times infinity."""
    run = Run("sgd", np.zeros((2, 2), np.float32), "float32", backend, momentum=0.9, moments="exact")
    run.step(np.array([0, 1]), np.ones((2, 2), np.float32), 0.1)
    run.arrays["momentum_buffer"][0, 0] = np.inf
    run.step(np.array([0]), np.ones((1, 2), np.float32), 0.1)
    assert run.param[0, 0] == -np.inf
    assert np.isfinite(run.param[0, 1]) and np.isfinite(run.param[1]).all()


def test_the_first_step_is_not_dampened(backend):
    buffer = np.zeros((2, 1))
    options = {"momentum": 0.5, "dampening": 0.5, "momentum_buffer": buffer, "lr": 1.0, "backend": backend}
    param = np.zeros((2, 1))
    for step in (1, 2):
        sparsekit.sparse_sgd_step(param, np.array([1]), np.ones((1, 1)), step=step, **options)
    assert buffer.ravel().tolist() == [0.0, 1.0] and param.ravel().tolist() == [0.0, -2.0]


def test_a_buffer_that_has_died_away_costs_no_replay(backend):
    """A row that sat out 10**6 steps: what is left of the geometric series does not show."""
    param, buffer, last_step = np.ones((2, 1)), np.ones((2, 1)), np.zeros(2, int)
    history = np.zeros((10**6, 3))
    history[:, [0, 2]] = 0.1
    options = {"momentum": 0.5, "moments": "exact", "momentum_buffer": buffer, "last_step": last_step, "history": history}
    sparsekit.sparse_sgd_flush(param, step=10**6, **options, backend=backend)
    np.testing.assert_allclose(param, 1 - 0.1, rtol=1e-15)
    assert not buffer.any() and last_step.tolist() == [10**6] * 2
