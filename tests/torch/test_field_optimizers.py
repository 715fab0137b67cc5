"""What users reported about the peers (FIELD.md), B-2 and B-3: what sparse optimizers lack elsewhere, with the right value."""

import copy
import math

import pytest

pytest.importorskip("torch.nn")
import torch
from _training import close
from torch import nn

from sparsekit.torch import Adam, SparseAdagrad, SparseAdam, SparseSGD

pytestmark = pytest.mark.usefixtures("in_each_backend")


def table(n=4, width=2):
    return nn.Parameter(torch.ones(n, width, dtype=torch.float64))


def full(value):
    return torch.full((2,), value, dtype=torch.float64)


def step(optimizer, weight, row, value=1.0):
    values = torch.full((1, weight.shape[1]), value, dtype=weight.dtype)
    weight.grad = torch.sparse_coo_tensor([[row]], values, weight.shape, check_invariants=True)
    optimizer.step()


def test_b2_38_the_momentum_buffer_does_not_grow():
    """pytorch#3139: the sparse momentum buffer of SGD grew to 10.8 GB in 9 epochs."""
    weight = table(100)
    optimizer = SparseSGD([weight], lr=0.1, momentum=0.9)
    for row in range(50):
        step(optimizer, weight, row % 7)
        assert optimizer.state[weight]["momentum_buffer"].shape == weight.shape
    assert not optimizer.state[weight]["momentum_buffer"].is_sparse


@pytest.mark.parametrize(
    ("mode", "touched", "untouched"),
    [
        ("l2", 1 - 0.1, 1.0),  # Adam's first step has the length lr, whatever the gradient
        ("decoupled", (1 - 0.1 * 0.5) - 0.1, 1.0),
        ("decoupled_lazy", (1 - 0.1 * 0.5) - 0.1, 1 - 0.1 * 0.5),
    ],
)
def test_b3_44_named_modes_of_weight_decay(mode, touched, untouched):
    """pytorch#25484, torchrec#2821: asked for since 2017, and closed because it is disputed which rows decay."""
    weight = table()
    optimizer = SparseAdam([weight], lr=0.1, weight_decay=0.5, weight_decay_mode=mode)
    step(optimizer, weight, 2)
    optimizer.flush()
    close(1e-7, 0)(weight[2], full(touched))
    close(1e-12, 0)(weight[0], full(untouched))


def test_b3_45_rows_that_were_absent_catch_up_after_a_resume():
    """FBGEMM#2498, #2882, #5908: unseen rows never decayed, then prev_iter was missing from checkpoints."""
    weight = table()
    optimizer = SparseAdagrad([weight], lr=0.1, weight_decay=0.5, weight_decay_mode="decoupled_lazy")
    for row in (0, 1, 0):
        step(optimizer, weight, row)
    other = nn.Parameter(weight.detach().clone())
    resumed = SparseAdagrad([other])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(resumed, other, 1, 0.0)
    resumed.flush()
    close(1e-14, 0)(other[3], full((1 - 0.05) ** 4))
    step(optimizer, weight, 1, 0.0)
    optimizer.flush()
    assert torch.equal(weight, other)


def test_b3_46_amsgrad_keeps_the_largest_second_moment():
    """pytorch PR #4034: dropped, since the maximum was assigned to a local."""
    weight = table()
    optimizer = SparseAdam([weight], lr=0.1, betas=(0.9, 0.5), amsgrad=True)
    v = largest = 0.0
    for value in (4.0, 0.1, 0.1):
        step(optimizer, weight, 1, value)
        v = v + (value**2 - v) * 0.5
        largest = max(largest, v)
    assert largest > v
    state = optimizer.state[weight]
    close(1e-14, 0)(state["exp_avg_sq"][1], full(v))
    close(1e-14, 0)(state["max_exp_avg_sq"][1], full(largest))
    assert not state["max_exp_avg_sq"][[0, 2, 3]].any()


def test_b3_47_moments_decay_by_the_steps_that_a_row_sat_out():
    """tensorflow#6460, mxnet#9177: lazy Adam converges worse, as the moments of rare rows do not age."""
    weight = table()
    optimizer = SparseAdam([weight], lr=1e-3, moments="decayed")
    step(optimizer, weight, 1, 2.0)
    for _ in range(6):
        step(optimizer, weight, 0)
    step(optimizer, weight, 1, 0.0)
    state = optimizer.state[weight]
    close(1e-12, 0)(state["exp_avg"][1], full(0.1 * 2.0 * 0.9**7))
    close(1e-12, 0)(state["exp_avg_sq"][1], full(0.001 * 4.0 * 0.999**7))


def test_b3_48_a_row_that_comes_late_moves_by_lr():
    """FBGEMM#3342: with the step's bias correction, a row first seen at step 1001 moves by 2.5 lr."""
    moved = {}
    for correction in ("global", "row"):
        weight = table()
        optimizer = SparseAdam([weight], lr=0.1, bias_correction=correction)
        optimizer.load_state_dict(
            {
                "state": {0: {"step": 1000, "exp_avg": torch.zeros(4, 2), "exp_avg_sq": torch.zeros(4, 2)}},
                "param_groups": optimizer.state_dict()["param_groups"],
            }
        )
        optimizer.state[weight]["row_step"] = torch.zeros(4, dtype=torch.int64)
        step(optimizer, weight, 3)
        moved[correction] = 1 - weight[3, 0].item()
    assert moved["row"] == pytest.approx(0.1, rel=1e-6)
    assert moved["global"] == pytest.approx(0.1 * 0.1 * math.sqrt(1 - 0.999**1001) / math.sqrt(0.001), rel=1e-5)
    assert moved["global"] > 0.25


def test_b3_57_one_optimizer_for_sparse_and_dense_parameters():
    """allennlp's DenseSparseAdam, torchrec#3114, transformers#30276; a failing step moves nothing."""
    net = nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 1))
    optimizer = Adam(net.parameters(), lr=0.1)
    net(torch.tensor([[1, 2, 1]])).sum().backward()
    optimizer.step()
    assert [type(optimizer.state[p]["step"]) for p in net.parameters()] == [int, torch.Tensor, torch.Tensor]
    net[0].weight.grad = torch.sparse_coo_tensor([[20]], torch.ones(1, 4), (20, 4), check_invariants=False)
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(IndexError, match="20"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert optimizer.state[net[1].weight]["step"] == 1


def test_b3_65_one_second_moment_a_row():
    """pytorch#109282: the states of a table too large for two of its size."""
    for cls, name in ((SparseAdam, "exp_avg_sq"), (SparseAdagrad, "sum")):
        weight = table(1000, 64)
        optimizer = cls([weight], rowwise=True)
        step(optimizer, weight, 5, 3.0)
        state = optimizer.state[weight][name]
        assert state.shape == (1000,)
        assert state[5].item() == pytest.approx(9.0 * (0.001 if name == "exp_avg_sq" else 1.0), rel=1e-12)
