"""sparsekit.torch.SparseAdam: torch's errors, found earlier; a step that raises changes nothing; autograd and hooks."""

import numpy as np
import pytest

pytest.importorskip("torch.nn")
import torch
from _training import Peer, assert_same_state, embedding, sparse, state_of
from torch import nn

from sparsekit.torch import SparseAdam

pytestmark = pytest.mark.usefixtures("in_each_backend")


BAD = [
    {"lr": -1.0},
    {"lr": 0.0},
    {"lr": float("nan")},
    {"lr": torch.tensor([0.1, 0.2])},
    {"lr": torch.tensor(-0.1)},
    {"eps": 0.0},
    {"eps": -1e-8},
    {"betas": (1.0, 0.9)},
    {"betas": (0.9, -0.1)},
    {"betas": (0.9, float("nan"))},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_bad_options_are_refused_everywhere(options):
    word = "lr|[Ll]earning rate|[Ee]ps|[Bb]eta"

    def weights():
        return [nn.Parameter(torch.zeros(2, 2))]

    for cls in (Peer, SparseAdam):
        with pytest.raises(ValueError, match=word):
            cls(weights(), **options)
    with pytest.raises(ValueError, match=word):  # torch looks at the defaults only
        SparseAdam([{"params": weights(), **options}])
    optimizer = SparseAdam(weights())
    with pytest.raises(ValueError, match=word):
        optimizer.add_param_group({"params": weights(), **options})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: nn.Parameter(torch.eye(3).to_sparse()), "[Ss]parse"),
        (lambda: nn.Parameter(torch.zeros(2, dtype=torch.cfloat)), "[Cc]omplex"),
    ],
)
def test_sparse_and_complex_parameters_are_refused(make, word):
    good = nn.Parameter(torch.zeros(2, 2))
    for params in ([good, make()], [{"params": [good]}, {"params": [make()]}]):
        with pytest.raises(ValueError, match=word):
            Peer(params)
        with pytest.raises(ValueError, match=word) as raised:
            SparseAdam(params)
        assert "1" in str(raised.value)  # which one
    optimizer = SparseAdam([good])
    with pytest.raises(ValueError, match=word):  # torch lets it pass
        optimizer.add_param_group({"params": [make()]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match="more than one"):
        optimizer.add_param_group({"params": [good]})


def dense(p, group, state):
    p.grad = torch.ones_like(p)


def outside(p, group, state):
    p.grad = torch.sparse_coo_tensor([[1, 30]], torch.ones(2, 4, dtype=p.dtype), (30, 4), check_invariants=False)


def negative(p, group, state):
    p.grad = torch.sparse_coo_tensor([[1, -1]], torch.ones(2, 4, dtype=p.dtype), (30, 4), check_invariants=False)


def expanded(p, group, state):
    p.data = p.data[:1].expand(30, 4)


def negative_lr(p, group, state):
    group["lr"] = -1.0


def nan_beta(p, group, state):
    group["betas"] = (0.9, float("nan"))


def short_state(p, group, state):
    state["exp_avg_sq"] = state["exp_avg_sq"][:-1]


def one_state_for_both(p, group, state):
    state["exp_avg_sq"] = state["exp_avg"]


def negative_step(p, group, state):
    state["step"] = -1


@pytest.mark.parametrize(
    ("spoil", "error", "match"),
    [
        (dense, RuntimeError, "dense gradient"),
        (outside, IndexError, "= 30 is out of range"),
        (negative, IndexError, "= -1 is out of range"),
        (expanded, (ValueError, RuntimeError), "param"),
        (negative_lr, ValueError, "lr|learning rate"),
        (nan_beta, ValueError, "beta"),
        (short_state, (ValueError, RuntimeError), "exp_avg_sq"),
        (one_state_for_both, (ValueError, RuntimeError), "exp_avg_sq"),
        (negative_step, (ValueError, RuntimeError), "step"),
    ],
)
@pytest.mark.parametrize("where", [1, 3])
def test_nothing_changes_when_a_step_raises(spoil, error, match, where):
    """Neither parameters nor states nor step counts, of any parameter in any group; put right, it goes on."""
    modules = [embedding(seed=i) for i in range(4)]
    weights = [m.weight for m in modules]
    optimizer = SparseAdam([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.1}])
    weight, group = weights[where], optimizer.param_groups[where // 2]

    def gradients(some):
        optimizer.zero_grad()
        for m in some:
            (m(torch.tensor([1, 2, 1])) ** 2).sum().backward()

    gradients([modules[0], modules[where]])  # the others have no state yet
    optimizer.step()
    gradients(modules)
    before = state_of(optimizer)
    state = optimizer.state[weight]
    good = weight.grad, weight.data, dict(group), dict(state)
    spoil(weight, group, state)
    with pytest.raises(error, match=match):
        optimizer.step()
    weight.data, weight.grad = good[1], good[0]
    group.update(good[2])
    state.update(good[3])
    assert_same_state(before, state_of(optimizer))
    optimizer.step()
    steps = [optimizer.state[w]["step"] for w in weights]
    assert steps == [2 if i in (0, where) else 1 for i in range(4)]


def test_a_stale_graph_raises_after_a_step():
    module = embedding()
    optimizer = SparseAdam(module.parameters())
    loss = (module.weight * module.weight).sum()
    module.weight.grad = sparse([[1]], np.ones((1, 4)), (30, 4))
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_hooks_and_gradients_are_left_alone():
    module = embedding()
    optimizer = SparseAdam(module.parameters())
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
    optimizer.register_step_post_hook(lambda *_: called.append("post"))
    module(torch.tensor([3, 1, 3])).sum().backward()
    gradient = module.weight.grad
    pointer, values = gradient._values().data_ptr(), gradient._values().clone()
    optimizer.step()
    assert called == ["pre", "post"]
    assert module.weight.grad is gradient and gradient._values().data_ptr() == pointer
    assert torch.equal(gradient._values(), values) and gradient._indices().tolist() == [[3, 1, 3]]
