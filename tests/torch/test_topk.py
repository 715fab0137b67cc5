"""Top-k gradients and the TopK optimizer against plain loops over one flat float64 vector."""

import copy
import io
import pickle

import numpy as np
import pytest
from _oracles import topk as topk_oracle
from _tolerance import to_numpy

pytest.importorskip("torch.nn")
import torch
from _training import sparse
from torch import nn

from sparsekit.torch import TopK, topk_gradients_

SHAPES = ((6, 3), (4, 5), (7,))


pytestmark = pytest.mark.usefixtures("in_each_backend")


def parameters(dtype=torch.float64):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(*shape, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def set_gradients(params, step, as_sparse=True):
    """The first one sparse with duplicates, or its dense form; in eighths, so that sums are exact."""
    rng = np.random.default_rng(step)
    rows = sparse([rng.integers(0, 6, 4).tolist()], rng.integers(-40, 40, (4, 3)) / 8, (6, 3))
    params[0].grad = (rows if as_sparse else rows.to_dense()).to(params[0].dtype)
    for p in params[1:]:
        p.grad = torch.tensor(rng.integers(-40, 40, p.shape) / 8).to(p.dtype)


def flat(tensors):
    return np.concatenate([to_numpy(t.to_dense() if t.is_sparse else t).astype(np.float64).ravel() for t in tensors])


def chosen(vector, k):
    mask = np.zeros(vector.size, bool)
    mask[topk_oracle([vector], k)[0]] = True
    return mask


@pytest.mark.parametrize("k", [0, 1, 7, 30, 45])
@pytest.mark.parametrize("as_sparse", [True, False])
def test_topk_gradients(k, as_sparse):
    params = parameters()
    set_gradients(params, 3, as_sparse)
    vector = flat([p.grad for p in params])
    dense = params[1].grad
    topk_gradients_(params, k)
    np.testing.assert_array_equal(flat([p.grad for p in params]), np.where(chosen(vector, k), vector, 0))
    assert params[1].grad is dense and params[0].grad.is_sparse == as_sparse
    assert not as_sparse or bool((params[0].grad.values() != 0).any(1).all())


def test_b5_74_79_80_83_ties_global_choice_magnitude_and_exactly_k():
    """pytorch#88227: lowest first; grace#9: over all layers; pfl-research#65: by magnitude; a threshold took 10000 for k = 10."""
    params = [nn.Parameter(torch.zeros(1000)) for _ in range(10)]
    for p in params:
        p.grad = torch.ones(1000)
    topk_gradients_(params, k=10)
    assert params[0].grad.nonzero().ravel().tolist() == list(range(10)) and not any(p.grad.any() for p in params[1:])
    params[0].grad[:], params[1].grad[:3] = 0.5, torch.tensor([-5.0, 1.0, 2.0])
    topk_gradients_(params, ratio=1e-4)
    assert params[1].grad[:3].tolist() == [-5, 0, 0] and not params[0].grad.any()


def test_b5_75_nan_and_infinity_do_not_spread():
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.tensor([float("inf"), float("nan"), 1.0, float("-inf")])
    topk_gradients_(weight, 1)
    assert weight.grad.isnan().tolist() == [False, True, False, False] and weight.grad[[0, 2, 3]].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "arguments", [{}, {"k": 1, "ratio": 0.1}, {"k": -1}, {"k": 46}, {"k": 1.0}, {"ratio": 1.5}, {"ratio": -0.1}]
)
def test_b5_76_bad_k(arguments):
    params = parameters()
    set_gradients(params, 0)
    before = [p.grad for p in params]
    with pytest.raises((TypeError, ValueError)):
        topk_gradients_(params, **arguments)
    assert all(p.grad is grad for p, grad in zip(params, before, strict=True))


OPTIONS = [
    {"k": 5},
    {"ratio": 0.1, "error_feedback": False},
    {"k": 4, "momentum_correction": 0.5},
    {"k": 4, "momentum_correction": 0.5, "momentum_masking": False, "clip": 2.0},
    {"k": 1, "warmup": 1},
    {"k": 45},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("as_sparse", [True, False])
def test_steps_follow_the_formula(options, as_sparse):
    """Deep Gradient Compression, on one flat vector."""
    params = parameters()
    optimizer = TopK(torch.optim.SGD(params, lr=0.25), **options)
    weights = flat([p.detach() for p in params])
    residual, momentum = np.zeros(45), np.zeros(45)
    m = options.get("momentum_correction", 0.0)
    for step in range(6):
        set_gradients(params, step, as_sparse)
        g = flat([p.grad for p in params])
        optimizer.step()
        if "clip" in options:
            g = g * min(1.0, options["clip"] / (np.linalg.norm(g) + 1e-6))
        momentum = m * momentum + g
        total = residual + momentum
        k = options.get("k") or 5
        if "warmup" in options and step < 4:
            k = (12, 3, 1, 1)[step]
        mask = chosen(total, k)
        weights -= 0.25 * np.where(mask, total, 0)
        if options.get("error_feedback", True):
            residual = np.where(mask, 0, total)
        if options.get("momentum_masking", True):
            momentum[mask] = 0
        np.testing.assert_allclose(flat([p.detach() for p in params]), weights, rtol=1e-12, atol=1e-12)
        if options.get("error_feedback", True):
            assert optimizer.state[params[0]]["residual"].is_sparse == as_sparse
            np.testing.assert_allclose(flat([optimizer.state[p]["residual"] for p in params]), residual, atol=1e-12)
        else:
            assert not any("residual" in optimizer.state[p] for p in params)
        if m:
            np.testing.assert_allclose(flat([optimizer.state[p]["momentum_buffer"] for p in params]), momentum, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_b5_85_residual_is_accumulated_minus_applied(dtype):
    """powersgd#3, grace#19: nothing is lost, not even what rounding to 16 bits takes; and gradients stay the caller's."""
    params = parameters(dtype)
    optimizer = TopK(torch.optim.SGD(params, lr=0.0), k=6)
    given, applied = np.zeros(45), np.zeros(45)

    def watch(*_):
        applied[:] += flat([p.grad.float() for p in params])

    optimizer.base.register_step_pre_hook(watch)
    for step in range(8):
        set_gradients(params, step)
        grads = [p.grad for p in params]
        given += flat([grad.float() for grad in grads])
        optimizer.step()
        assert all(p.grad is grad for p, grad in zip(params, grads, strict=True))
        optimizer.zero_grad()
    residual = flat([optimizer.state[p]["residual"] for p in params])
    assert optimizer.state[params[1]]["residual"].dtype == torch.float32
    np.testing.assert_array_equal(given, applied + residual)


def run(optimizer, params, steps):
    for step in steps:
        set_gradients(params, step)
        params[0].grad = params[0].grad.to_dense()  # Adam takes dense gradients only
        optimizer.step()


def make(dtype=torch.float32):
    params = parameters(dtype)
    groups = [{"params": params[:2], "lr": 0.1}, {"params": params[2:]}]
    return params, TopK(torch.optim.Adam(groups, lr=0.01, eps=1e-2), k=5, momentum_correction=0.5, warmup=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("way", ["torch.save", "deepcopy", "pickle"])
def test_resumed_to_the_bit(way, dtype):
    params, optimizer = make(dtype)
    run(optimizer, params, range(5))
    if way == "torch.save":
        buffer = io.BytesIO()
        torch.save((params, optimizer.state_dict()), buffer)
        buffer.seek(0)
        saved, state = torch.load(buffer, weights_only=True)
        others, other = make(dtype)
        with torch.no_grad():
            for p, q in zip(others, saved, strict=True):
                p.copy_(q)
        other.load_state_dict(state)
    else:
        clone = copy.deepcopy if way == "deepcopy" else lambda x: pickle.loads(pickle.dumps(x))
        others, other = clone((params, optimizer))
        assert other.param_groups is other.base.param_groups
    run(optimizer, params, range(5, 10))
    run(other, others, range(5, 10))
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
        for name in ("residual", "momentum_buffer"):
            one, two = optimizer.state[p][name], other.state[q][name]
            assert one.dtype == two.dtype == torch.float32 and torch.equal(one, two)


def test_sparse_states_are_saved():
    params = parameters()
    optimizer = TopK(torch.optim.SGD(params, lr=0.1), k=3)
    set_gradients(params, 0)
    optimizer.step()
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    other = TopK(torch.optim.SGD(params, lr=0.5), k=3)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    one, two = optimizer.state[params[0]]["residual"], other.state[params[0]]["residual"]
    assert two.is_sparse and torch.equal(one.to_dense(), two.to_dense()) and other.param_groups[0]["lr"] == 0.1


def test_an_optimizer_as_torch_promises():
    params, optimizer = make()
    assert isinstance(optimizer, torch.optim.Optimizer)
    more = nn.Parameter(torch.zeros(3))
    optimizer.add_param_group({"params": [more], "lr": 0.5})
    assert optimizer.base.param_groups[2]["params"] == [more] and optimizer.param_groups[2]["betas"] == (0.9, 0.999)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    set_gradients(params, 0, as_sparse=False)
    assert optimizer.step(lambda: 7.0) == 7.0 and calls == ["pre", "post"]
    scheduler.step()
    assert [group["lr"] for group in optimizer.base.param_groups] == [0.05, 0.005, 0.25]
    optimizer.zero_grad()
    assert all(p.grad is None for p in params) and "residual" in optimizer.state[params[0]]
    optimizer.base.load_state_dict(copy.deepcopy(optimizer.base.state_dict()))
    assert optimizer.param_groups is optimizer.base.param_groups


def test_grad_scaler_skips_without_touching_the_residual():
    weight = nn.Parameter(torch.ones(4))
    optimizer = TopK(torch.optim.SGD([weight], lr=0.1), k=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * torch.tensor([4.0, 3.0, 2.0, 1.0])).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.steps == 2
    assert optimizer.state[weight]["residual"].tolist() == [4.0, 0.0, 4.0, 2.0]


@pytest.mark.parametrize("as_sparse", [True, False])
def test_only_chosen_coordinates_move(as_sparse):
    params = parameters()
    optimizer = TopK(torch.optim.SGD(params, lr=0.1, momentum=0.9), k=4, chosen_only=True)
    for step in range(4):
        before = flat([p.detach() for p in params])
        set_gradients(params, step, as_sparse)
        optimizer.step()
        moved = flat([p.detach() for p in params]) != before
        assert 0 < moved.sum() <= 4


def test_a_failing_base_leaves_everything_as_it_was():
    params = parameters()
    optimizer = TopK(torch.optim.Adam(params), k=4)
    set_gradients(params, 0)  # sparse, which Adam refuses
    grads = [p.grad for p in params]
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert all(p.grad is grad for p, grad in zip(params, grads, strict=True))
    assert not optimizer.state and optimizer.steps == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 1, "ratio": 0.5},
        {"k": -1},
        {"k": True},
        {"ratio": 2.0},
        {"k": 1, "momentum_correction": 1.0},
        {"k": 1, "clip": 0.0},
        {"k": 1, "warmup": -1},
    ],
)
def test_bad_options(options):
    with pytest.raises((TypeError, ValueError)):
        TopK(torch.optim.SGD(parameters(), lr=0.1), **options)


def test_refusals():
    params = parameters()
    with pytest.raises(ValueError, match="momentum=0"):
        TopK(torch.optim.SGD(params, lr=0.1, momentum=0.9), k=1, momentum_correction=0.9)
    with pytest.raises(TypeError, match="base_optimizer"):
        TopK(params, k=1)
    optimizer = TopK(torch.optim.SGD(params, lr=0.1), k=1)
    with pytest.raises(ValueError, match=r"\.base"):
        optimizer.load_state_dict(optimizer.base.state_dict())
    set_gradients(params, 0)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][1]["residual"] = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="shape"):
        optimizer.load_state_dict(state)


def test_saved_options_replace_those_given():
    """Resumed in mid-warm-up by an optimizer that was made with others."""
    params, optimizer = make()
    run(optimizer, params, range(3))
    others, _ = make()
    with torch.no_grad():
        for p, q in zip(others, params, strict=True):
            p.copy_(q)
    groups = [{"params": others[:2]}, {"params": others[2:]}]
    other = TopK(torch.optim.Adam(groups), ratio=0.9, error_feedback=False, clip=0.1, chosen_only=True)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(3, 10))  # the warm-up ends with step 8
    run(other, others, range(3, 10))
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))
    assert other.state_dict()["options"] == optimizer.state_dict()["options"] and other.steps == 10


@pytest.mark.parametrize("missing", ["base", "options", "steps", "k"])
def test_an_incomplete_state_is_refused_and_nothing_loaded(missing):
    params, optimizer = make()
    run(optimizer, params, range(3))
    state = copy.deepcopy(optimizer.state_dict())
    del (state["options"] if missing == "k" else state)[missing]
    _, other = make()
    with pytest.raises(ValueError, match="expected the"):
        other.load_state_dict(state)
    assert not other.state and not other.base.state and other.steps == 0


@pytest.mark.parametrize("as_sparse", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("options", [{"k": 3}, {"k": 0}, {"k": 3, "error_feedback": False}, {"k": 3, "clip": 1.0}])
def test_a_gradient_that_is_not_finite_is_refused(options, value, as_sparse):
    params = parameters()
    optimizer = TopK(torch.optim.SGD(params, lr=0.1), momentum_correction=0.5, **options)
    set_gradients(params, 0, as_sparse)
    optimizer.step()
    before = flat([p.detach() for p in params])
    state = copy.deepcopy(optimizer.state_dict()["state"])
    set_gradients(params, 1, as_sparse)
    params[0].grad = params[0].grad.coalesce() if as_sparse else params[0].grad
    (params[0].grad.values() if as_sparse else params[0].grad)[1, 1] = value
    with pytest.raises(ValueError, match=r"shape \(6, 3\) must be finite"):
        optimizer.step()
    np.testing.assert_array_equal(flat([p.detach() for p in params]), before)
    assert optimizer.steps == 1
    for number, saved in state.items():
        for name, tensor in optimizer.state_dict()["state"][number].items():
            np.testing.assert_array_equal(to_numpy(tensor.to_dense()), to_numpy(saved[name].to_dense()))


def test_b3_59_what_adds_up_beyond_float16_is_refused():
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    optimizer = TopK(torch.optim.SGD([weight], lr=0.1), k=0)
    weight.grad = torch.full((2,), 40000.0, dtype=torch.float16)
    optimizer.step()
    with pytest.raises(ValueError, match=r"finite in torch\.float16"):
        optimizer.step()
    assert optimizer.state[weight]["residual"].tolist() == [40000.0, 40000.0]
