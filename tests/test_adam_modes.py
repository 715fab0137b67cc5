"""Adam's modes: dense torch.optim.Adam and AdamW; what users of the peers asked for (FIELD.md, B-3). All modes: test_optim.py."""

import numpy as np
import pytest
from _runs import ROWS, Run, gradients, rates, summed
from _tolerance import assert_bits

import sparsekit

LAZY = {"weight_decay_mode": "decoupled_lazy", "weight_decay": 0.3}


def dense(torch, indices, values):
    out = torch.zeros(ROWS, values.shape[1], dtype=torch.float64)
    for row, g in summed(indices, values).items():
        out[row] = torch.tensor(g)
    return out


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5), (0.9, 0.7), (0.99, 0.95)])  # the last two are never cut off
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decay", [{}, LAZY], ids=["Adam", "AdamW"])
def test_exact_moments_are_dense_torch(backend, torch, betas, amsgrad, decay):
    """b3_47, b3_55: lazy Adam converges worse; this is torch's dense optimizer, zeros and all, after a flush."""
    start = np.random.default_rng(0).standard_normal((ROWS, 3))
    weight = torch.nn.Parameter(torch.tensor(start))
    make = torch.optim.AdamW if decay else torch.optim.Adam
    weight_decay = decay.get("weight_decay", 0.0)
    peer = make([weight], lr=1.0, betas=betas, eps=1e-3, amsgrad=amsgrad, weight_decay=weight_decay)
    run = Run("adam", start, "float64", backend, betas=betas, eps=1e-3, amsgrad=amsgrad, moments="exact", steps=300, **decay)
    for gradient, lr in zip(gradients(3, 300, 3), rates(300), strict=True):
        weight.grad, peer.param_groups[0]["lr"] = dense(torch, *gradient), lr
        peer.step()
        run.step(*gradient, lr)
        if run.steps in (100, 101):
            run.flush()
    run.flush()
    state = peer.state[weight]
    np.testing.assert_allclose(run.param, weight.detach().numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(run.moments["exp_avg"], state["exp_avg"].numpy(), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(run.moments["exp_avg_sq"], state["exp_avg_sq"].numpy(), rtol=1e-9, atol=1e-300)
    if amsgrad:
        np.testing.assert_allclose(run.arrays["max_exp_avg_sq"], state["max_exp_avg_sq"].numpy(), rtol=1e-9)


@pytest.mark.parametrize("lr_now", [0.1, 0.0])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_row_that_sat_out_very_long(backend, amsgrad, lr_now):
    """Cut off long before step 10**5, also where the rate was 0 at first, with what the whole replay gives."""
    steps = 10**5
    history = np.zeros((steps, 3))
    history[0], history[1:, 0], history[:, 2] = [0.1, 0, 0.1], 0.1, 0.1
    history[1:30, 0] = lr_now
    m, v = np.array([[0.3, -0.2]]), np.array([[0.5, 1e-4]])
    largest = np.array([[0.5, 1e-3]])
    p, beta1, beta2 = np.array([1.0, -2.0]), 0.9, 0.999
    a, b = m[0].copy(), v[0].copy()
    for s in range(2, 1000):
        a, b = a * beta1, b * beta2
        root = np.sqrt((largest[0] if amsgrad else b) / (1 - beta2**s))
        p = p - history[s - 1, 0] / (1 - beta1**s) * a / (root + 1e-8)
    param, last_step = np.array([[1.0, -2.0]]), np.array([1])
    options = {"moments": "exact", "last_step": last_step, "history": history, "backend": backend}
    options["max_exp_avg_sq"] = largest if amsgrad else None
    sparsekit.sparse_adam_flush(param, m, v, step=steps, **options)
    np.testing.assert_allclose(param[0], p, rtol=1e-14)
    np.testing.assert_allclose(v, np.array([[0.5, 1e-4]]) * beta2 ** (steps - 1.0), rtol=1e-10)
    assert last_step[0] == steps and not m.any()


def test_rows_never_touched_only_decay(backend):
    """b3_45: FBGEMM#2498, #5908; the lazy factor is the product over all steps, under changing rates and decays."""
    run = Run("adam", np.ones((ROWS, 2)), "float64", backend, moments="exact", **LAZY)
    expected = 1.0
    for t, lr in enumerate(rates(50)):
        decay = 0.3 if t < 20 else 0.01 * t
        run.step(np.array([0]), np.ones((1, 2)), lr, weight_decay=decay)
        expected *= 1 - lr * decay
    run.flush()
    np.testing.assert_allclose(run.param[1:], expected, rtol=1e-13)
    assert not run.moments["exp_avg"][1:].any()


@pytest.mark.parametrize(("correction", "move"), [("global", 2.5), ("row", 1.0)])
def test_b3_48_a_row_first_seen_late(backend, correction, move):
    """FBGEMM#3342: the first move of a row at step 1001 is 2.5 lr in torch; by its own count it is lr."""
    param, m, v = (np.zeros((2, 1)) for _ in range(3))
    row_step = np.zeros(2, int) if correction == "row" else None
    options = {"step": 1001, "lr": 0.1, "bias_correction": correction, "row_step": row_step, "backend": backend}
    sparsekit.sparse_adam_step(param, m, v, np.array([1]), np.array([[3.0]]), **options)
    assert -param[1, 0] / 0.1 == pytest.approx(move, rel=0.01)
    if correction == "row":
        assert row_step.tolist() == [0, 1]


def test_b3_44_decay_by_name(backend):
    """pytorch#25484: asked for since 2017 and disputed, so each reading has a name."""
    results = {}
    for mode in ("l2", "decoupled", "decoupled_lazy"):
        run = Run("adam", np.full((ROWS, 1), 2.0), "float64", backend, weight_decay_mode=mode, weight_decay=0.5)
        for _ in range(2):
            run.step(np.array([1]), np.zeros((1, 1)), 0.1)
        run.flush()
        results[mode] = run.param[:2, 0]
    np.testing.assert_allclose(results["decoupled"], [2.0, 2 * 0.95**2], rtol=1e-15)
    np.testing.assert_allclose(results["decoupled_lazy"], [2 * 0.95**2] * 2, rtol=1e-15)
    assert results["l2"][0] == 2.0 and results["l2"][1] == pytest.approx(1.8, abs=1e-3)  # Adam makes any decay lr a step


def test_b3_46_the_largest_moment_is_kept(backend):
    """pytorch PR #4034: it was assigned to a local. A small gradient after a large one: the step stays small."""
    run = Run("adam", np.zeros((ROWS, 1)), "float64", backend, amsgrad=True, betas=(0.0, 0.5))
    run.step(np.array([1]), np.array([[8.0]]), 0.1)
    for _ in range(20):
        run.step(np.array([1]), np.array([[1e-3]]), 0.1)
    assert run.arrays["max_exp_avg_sq"][1, 0] == 32.0
    assert run.moments["exp_avg_sq"][1, 0] < 1e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_b3_59_16_bit_states_do_not_lose_small_gradients_to_rounding(backend, dtype):
    """1e-3 squared is 0 in float16: float32 states are the default; stochastic rounding moves 16-bit ones on average."""
    from _cases import dtype_of

    kind, rows = dtype_of(dtype), np.arange(4000)
    param, m, v = np.ones((4000, 1), kind), np.zeros((4000, 1), "f4"), np.zeros((4000, 1), "f4")
    values = np.ones((4000, 1), kind)
    for step in range(1, 11):  # each moves by 1e-5, far below the resolution at 1
        options = {"step": step, "lr": 1e-5, "rounding": "stochastic", "seed": 1, "backend": backend}
        sparsekit.sparse_adam_step(param, m, v, rows, values, **options)
    assert 1 - param.astype(np.float64).mean() == pytest.approx(1e-4, rel=0.5)
    nearest = np.ones((4000, 1), kind)
    sparsekit.sparse_adam_step(nearest, m, v, rows, values, step=1, lr=1e-5, backend=backend)
    assert_bits(nearest, np.ones((4000, 1), kind))


def test_states_in_float64_for_float32(backend):
    """The arithmetic is float64 then, rounded to param's type once."""
    param, m, v = np.float32([[1.0]]), np.zeros((1, 1)), np.zeros((1, 1))
    sparsekit.sparse_adam_step(param, m, v, np.array([0]), np.float32([[0.3]]), step=1, lr=0.1, backend=backend)
    g = float(np.float32(0.3))
    np.testing.assert_allclose([m[0, 0], v[0, 0]], [0.1 * g, 0.001 * g * g], rtol=1e-14)
    assert param[0, 0] == np.float32(1 - 0.1 * g / (g + 1e-8 / np.sqrt(0.001)))


def test_b3_67_memory_of_a_step_does_not_grow_with_the_table(backend):
    """keras#19992: decaying all of m in each step; here the rows wait until they are touched."""
    import tracemalloc

    run = Run("adam", np.zeros((200_000, 4), "f4"), "float32", backend, moments="exact", **LAZY)
    call = (np.array([3, 199_999, 3]), np.ones((3, 4), "f4"), 0.1)
    run.step(*call)
    tracemalloc.start()
    run.step(*call)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
