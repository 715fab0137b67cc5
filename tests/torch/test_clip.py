"""Clipping, accumulating and unscaling of dense and sparse gradients: against torch on their dense forms, and plain numbers."""

import numpy as np
import pytest

import sparsekit

pytest.importorskip("torch.nn")
import torch
from _training import sparse
from torch import nn

from sparsekit.torch import (
    accumulate_grad_,
    clip_grad_norm_,
    clip_grad_value_,
    coalesce_grads_,
    grads_are_finite,
    unscale_grads_,
)

NORMS = [1.0, 2.0, 3.5, 0.5, -1.0, float("inf"), -float("inf")]


pytestmark = pytest.mark.usefixtures("in_each_backend")


def parameters(dtype=torch.float64):
    """A gradient with sparse rows and duplicates, a dense one, one with two sparse dimensions, and none."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(*shape, dtype=dtype)) for shape in ((6, 3), (4, 5), (3, 4), (2,))]
    params[0].grad = sparse([[1, 4, 1, 0]], torch.randn(4, 3, dtype=dtype).tolist(), (6, 3)).to(dtype)
    params[1].grad = torch.randn(4, 5, dtype=dtype)
    params[2].grad = sparse([[2, 0, 2], [1, 1, 1]], torch.randn(3, dtype=dtype).tolist(), (3, 4)).to(dtype)
    return params


def dense(params):
    out = [nn.Parameter(p.detach().clone()) for p in params]
    for p, q in zip(params, out, strict=True):
        q.grad = None if p.grad is None else p.grad.to_dense().clone()
    return out


@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("max_norm", [0.1, 1e3, 0.0])
def test_mixed_gradients_are_clipped_as_their_dense_forms(norm_type, max_norm):
    params = parameters()
    peers = dense(params)
    want = torch.nn.utils.clip_grad_norm_(peers, max_norm, norm_type)
    got = clip_grad_norm_(iter(params), max_norm, norm_type)
    torch.testing.assert_close(got, want)
    for p, q in zip(params[:3], peers[:3], strict=True):
        torch.testing.assert_close(p.grad.to_dense(), q.grad)
    assert params[0].grad.is_sparse and params[0].grad.is_coalesced() and params[0].grad._nnz() == 3
    assert params[3].grad is None


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm_type", NORMS)
def test_dense_gradients_are_clipped_as_by_torch_to_the_bit(norm_type, foreach):
    params = dense(parameters(torch.float32))
    peers = dense(params)
    grads = [p.grad for p in params]
    want = torch.nn.utils.clip_grad_norm_(peers, 0.3, norm_type, foreach=foreach)
    assert torch.equal(clip_grad_norm_(params, 0.3, norm_type, foreach=foreach), want)
    for p, q, grad in zip(params[:3], peers[:3], grads[:3], strict=True):
        assert p.grad is grad and torch.equal(grad, q.grad)


def test_norm_0_counts_the_nonzeros_of_all():
    params = parameters()
    params[1].grad[0, 0] = 0
    assert clip_grad_norm_(params, 1e9, 0).item() == 9 + 19 + 2
    assert clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0) == 0.0  # no gradient


def test_empty_gradients():
    params = parameters()
    params[0].grad, params[1] = sparse([[]], np.empty((0, 3)), (6, 3)), nn.Parameter(torch.empty(0, 2))
    params[1].grad = torch.empty(0, 2)
    largest = params[2].grad.to_dense().abs().max().item()
    assert clip_grad_norm_(params, 1.0, float("inf")).item() == pytest.approx(largest)
    assert clip_grad_norm_(params[:1], 1.0, -1.0).item() == 0.0


def test_b4_68_the_norm_is_that_of_the_summed_rows():
    """tutorials#2245, pytorch#12159: x = [1, 1, 2] has L2 norm 3.1623; inf, 1 and 0 likewise."""
    for norm_type, want in ((2, 10**0.5), (float("inf"), 2.0), (1, 6.0), (0, 4.0)):
        table = nn.Embedding(5, 2, sparse=True)
        out = table(torch.tensor([1, 1, 2]))
        out.retain_grad()
        (out * 1.0).sum().backward()
        total = clip_grad_norm_(table.parameters(), 1.0, norm_type)
        assert total.item() == pytest.approx(want)
        grad = table.weight.grad.to_dense()
        torch.testing.assert_close(grad[1], torch.full((2,), 2 / want), rtol=1e-5, atol=0)
        assert torch.equal(out.grad, torch.ones(3, 2))  # whose memory the gradient may share


def test_non_finite_norms():
    params = parameters()
    params[1].grad[0, 0] = float("nan")
    grads = [p.grad for p in params]
    before = grads[0]._values().clone(), grads[1].clone()
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert all(p.grad is grad for p, grad in zip(params, grads, strict=True))
    assert torch.equal(grads[0]._values(), before[0])
    torch.testing.assert_close(grads[1], before[1], rtol=0, atol=0, equal_nan=True)
    clip_grad_norm_(params, 1.0)
    assert params[0].grad.values().isnan().all()  # as torch


def test_values_are_clipped_after_summing():
    params = parameters()
    peers = dense(params)
    clip_grad_value_(params, 0.4)
    torch.nn.utils.clip_grad_value_(peers, 0.4)
    for p, q in zip(params[:3], peers[:3], strict=True):
        assert torch.allclose(p.grad.to_dense(), q.grad, rtol=1e-12)


CALLS = {
    "norm": lambda params: clip_grad_norm_(params, 0.1),
    "value": lambda params: clip_grad_value_(params, 0.1),
    "coalesce": coalesce_grads_,
    "unscale": lambda params: unscale_grads_(params, 2.0),
    "topk": lambda params: sparsekit.torch.topk_gradients_(params, k=2),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("bad", ["index", "expanded", "no tensor"])
def test_one_bad_gradient_and_nothing_is_written(call, bad):
    params = parameters()
    if bad == "index":
        params[2].grad = torch.sparse_coo_tensor(
            torch.tensor([[0, 3], [0, 0]]), torch.ones(2).double(), (3, 4), check_invariants=False
        )
    elif bad == "expanded":
        params[2].grad = torch.ones(1, 1, dtype=torch.float64).expand(3, 4)
    grads = [p.grad for p in params[:2]]
    before = [grads[0]._values().clone(), grads[1].clone()]
    with pytest.raises((IndexError, TypeError, ValueError)):
        call([*params, "weight"] if bad == "no tensor" else params)
    assert params[0].grad is grads[0] and params[1].grad is grads[1]
    assert torch.equal(grads[0]._values(), before[0]) and torch.equal(grads[1], before[1])


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_bad_limits(wrong):
    params = parameters()
    grad = params[1].grad.clone()
    for call in (clip_grad_norm_, clip_grad_value_, unscale_grads_):
        with pytest.raises(ValueError, match=">"):
            call(params, wrong)
    assert torch.equal(params[1].grad, grad)


@pytest.mark.parametrize("hook", [False, True])
def test_accumulated_rows_stay_bounded(hook):
    """Three rows in turn, and one always, twice."""
    table, peer = (nn.Embedding(1000, 2, sparse=True, dtype=torch.float64) for _ in range(2))
    if hook:
        table.weight.register_post_accumulate_grad_hook(coalesce_grads_)
    for step in range(20):
        ids = torch.tensor([step % 3, 7, 7])
        for module in (table, peer):
            (module(ids) * (step + 1)).sum().backward()
        if not hook:
            coalesce_grads_(table.parameters())
        assert table.weight.grad._nnz() <= 4
    assert torch.equal(table.weight.grad.to_dense(), peer.weight.grad.to_dense())


def test_accumulate_grad_sparse_and_dense():
    rows = [[[1, 1]], [[3, 1]], [[1, 0]]]
    parts = [sparse(at, np.full((2, 2), i + 1.0), (5, 2)) for i, at in enumerate(rows)]
    for made in ([False] * 3, [True, False, False], [False, True, False], [True] * 3):
        weight = nn.Parameter(torch.zeros(5, 2, dtype=torch.float64))
        for part, is_dense in zip(parts, made, strict=True):
            accumulate_grad_(weight, part.to_dense() if is_dense else part)
        assert weight.grad.is_sparse == (not any(made))
        assert torch.equal(weight.grad.to_dense(), sum(part.to_dense() for part in parts))
        assert not weight.grad.is_sparse or weight.grad._nnz() == 3
    grad = weight.grad.clone()
    for wrong in (torch.zeros(5, 3).double(), torch.zeros(5, 2), parts[0].to_dense().tolist()):
        with pytest.raises((TypeError, ValueError)):
            accumulate_grad_(weight, wrong)
    assert torch.equal(weight.grad, grad)


def test_b1_05_and_b4_69_overflow_in_the_sum_alone_is_found():
    """pytorch#36786, #35810, #74739: float16 duplicates of 60000 are finite, their sum is not."""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    twice = torch.sparse_coo_tensor([[0, 0]], torch.full((2,), 60000.0, dtype=torch.float16), (3,), check_invariants=True)
    weight.grad = twice
    assert twice._values().isfinite().all() and not grads_are_finite([weight]) and weight.grad is twice
    assert not unscale_grads_([weight], 2.0)
    weight.grad = torch.sparse_coo_tensor([[0, 0]], torch.full((2,), 30000.0, dtype=torch.float16), (3,), check_invariants=True)
    assert unscale_grads_([weight], torch.tensor(1000.0))
    assert weight.grad.to_dense().tolist() == [60.0, 0.0, 0.0]


def test_grad_scaler_sees_the_sum():
    """GradScaler looks at each duplicate of a float32 gradient; coalesced first, it skips the step."""
    for first, moved in ((False, True), (True, False)):
        weight = nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=1e-38)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        scaler.scale(torch.zeros(()))
        weight.grad = torch.sparse_coo_tensor([[0, 0]], torch.full((2,), 3e38), (3,), check_invariants=True)
        if first:
            coalesce_grads_([weight])
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert bool(weight.detach()[0] != 0) == moved
