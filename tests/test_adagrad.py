"""sparse_adagrad_step: torch's optimizer, rowwise sums, defaults. All modes and errors: test_optim.py."""

import numpy as np
import pytest
from _runs import ROWS, Run, gradients
from _tolerance import assert_bits, assert_close

import sparsekit


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("dtype", "rounds"), [("float64", 50), ("float32", 1)])
def test_torch_agrees(backend, torch, dtype, rounds, maximize):
    """On its sparse gradients, with a rate that decays; float64 over 50 steps, float32 in one."""
    start = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(dtype)
    weight = torch.nn.Parameter(torch.tensor(start))
    options = {"lr_decay": 0.1, "eps": 1e-7, "maximize": maximize}
    peer = torch.optim.Adagrad([weight], lr=0.3, **options)
    run = Run("adagrad", start, dtype, backend, **options)
    for indices, values in gradients(0, rounds, 4, dtype):
        rows = np.unique(indices) if dtype == "float32" else indices  # torch sums duplicates in float32
        gradient = torch.sparse_coo_tensor(torch.tensor(rows[None]), torch.tensor(values[: len(rows)]), (ROWS, 4))
        weight.grad = gradient
        peer.step()
        run.step(rows, values[: len(rows)], 0.3)
    for ours, theirs in ((run.param, weight), (run.moments["state_sum"], peer.state[weight]["sum"])):
        if dtype == "float64":
            np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12, atol=1e-14)
        else:
            assert_close(ours, theirs.detach().numpy(), atol=1e-9)


def test_b3_63_torchs_defaults(backend, torch):
    """mlcommons/training PR #622: eps 1e-8 instead of 1e-10 trains another model."""
    defaults = torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(1))]).defaults
    assert (defaults["lr"], defaults["eps"], defaults["lr_decay"]) == (1e-2, 1e-10, 0)
    call = (np.array([1]), np.full((1, 2), 1e-9))  # so small that eps shows
    implicit, explicit = ([np.zeros((2, 2)), np.zeros((2, 2))] for _ in range(2))
    sparsekit.sparse_adagrad_step(*implicit, *call, backend=backend)
    sparsekit.sparse_adagrad_step(*explicit, *call, lr=1e-2, eps=1e-10, backend=backend)
    assert_bits(implicit[0], explicit[0])


def test_rowwise_sums_the_mean_square(backend):
    """Also beyond 32 columns, where the sum is a tree: compared with a plain float64 mean."""
    for width in (1, 31, 32, 33, 1100):
        g = np.random.default_rng(width).standard_normal((2, width)).astype("f4")
        param, total = np.zeros((3, width), "f4"), np.full(3, 0.5, "f4")
        sparsekit.sparse_adagrad_step(param, total, np.array([0, 2]), g, lr=0.1, rowwise=True, backend=backend)
        expected = 0.5 + np.mean(g.astype(np.float64) ** 2, axis=1)
        np.testing.assert_allclose(total[[0, 2]], expected, rtol=2e-7)
        np.testing.assert_allclose(param[[0, 2]], -0.1 * g / np.sqrt(expected)[:, None], rtol=1e-6)
        assert total[1] == 0.5 and not param[1].any()


def test_duplicates_are_summed_before_they_are_squared(backend):
    """Also in runs of more than 32."""
    param, total = np.zeros((2, 1)), np.zeros((2, 1))
    sparsekit.sparse_adagrad_step(param, total, np.zeros(100, int), np.ones((100, 1)), lr=0.1, backend=backend)
    assert total.ravel().tolist() == [100.0**2, 0] and param[0, 0] == pytest.approx(-0.1)


def test_the_rate_of_a_step_is_what_decays_lazily(backend):
    options = {"lr_decay": 1.0, "weight_decay": 0.5, "weight_decay_mode": "decoupled_lazy"}
    run = Run("adagrad", np.ones((2, 1)), "float64", backend, **options)
    for _ in range(3):
        run.step(np.array([0]), np.zeros((1, 1)), 0.2)
    run.flush()
    np.testing.assert_allclose(run.param, (1 - 0.1) * (1 - 0.05) * (1 - 0.1 / 3), rtol=1e-15)
