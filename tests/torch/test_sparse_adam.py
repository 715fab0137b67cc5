"""sparsekit.torch.SparseAdam against torch.optim.SparseAdam: the same numbers, each loads the other's checkpoints."""

import copy
import functools
import inspect
import io
import pickle

import _oracles
import numpy as np
import pytest
from _tolerance import assert_bits, to_numpy

pytest.importorskip("torch.nn")
import torch
from _training import FLOAT64, Peer, assert_same_state, close, embedding, sparse, state_of, train
from torch import nn

from sparsekit.torch import SparseAdam

ULP32 = 2.0**-23


pytestmark = pytest.mark.usefixtures("in_each_backend")


def test_signature_and_defaults():
    ours, torchs = (list(inspect.signature(cls.__init__).parameters.values()) for cls in (SparseAdam, Peer))
    assert [(p.name, p.default, p.kind) for p in ours[: len(torchs)]] == [(p.name, p.default, p.kind) for p in torchs]
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(torchs) :])
    assert issubclass(SparseAdam, torch.optim.Optimizer)
    modules = embedding(), embedding()
    assert SparseAdam(modules[0].parameters()).defaults.items() >= Peer(modules[1].parameters()).defaults.items()


OPTIONS = [
    {},
    {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-3},
    {"lr": 0.01, "maximize": True},
    {"lr": torch.tensor(0.02, dtype=torch.float64)},
    {"lr": torch.tensor([0.02], dtype=torch.float64), "betas": (0.0, 0.0)},
]


def fifty_steps(cls, number, dtype, duplicates):
    module = embedding(dtype)
    optimizer = cls(module.parameters(), **OPTIONS[number])
    train(module, optimizer, 50, duplicates=duplicates)
    return state_of(optimizer)


peers_fifty_steps = functools.cache(functools.partial(fifty_steps, Peer))


@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize(
    ("dtype", "duplicates", "compare"),
    [
        (torch.float64, True, FLOAT64),
        (torch.float32, False, close(4 * ULP32, 50 * 0.05 * ULP32)),
        (torch.float32, True, close(1e-4, 1e-5)),  # torch adds duplicates in float32
    ],
    ids=["float64", "float32", "float32 duplicates"],
)
def test_50_steps(number, dtype, duplicates, compare):
    ours = fifty_steps(SparseAdam, number, dtype, duplicates)
    assert_same_state(ours, peers_fifty_steps(number, dtype, duplicates), compare)


def test_param_groups_closure_and_skipped_parameters():
    results = []
    for cls in (SparseAdam, Peer):
        modules = [embedding(seed=i) for i in range(4)]
        groups = [
            {"params": [modules[0].weight, modules[1].weight], "lr": 0.1},
            {"params": [modules[2].weight], "betas": (0.5, 0.6), "maximize": True},
        ]
        optimizer = cls(groups, lr=0.03)
        optimizer.add_param_group({"params": modules[3].weight, "eps": 1e-2})
        losses = []
        for step in range(6):
            used = [m for i, m in enumerate(modules) if (step + i) % 3]  # some have no gradient at some steps

            def closure(optimizer=optimizer, used=used, step=step):
                assert torch.is_grad_enabled()
                optimizer.zero_grad(set_to_none=True)
                loss = sum((m(torch.tensor([step, 2, 2])) ** 2).sum() for m in used)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        results.append((losses, state_of(optimizer)))
    assert np.allclose(results[0][0], results[1][0], rtol=1e-12)
    assert_same_state(results[0][1], results[1][1], FLOAT64)
    assert optimizer.step() is None


@pytest.mark.parametrize(
    ("shape", "indices", "dense"),
    [
        ((4, 5, 3), [[0, 3, 0], [1, 4, 1]], (3,)),
        ((4, 5), [[0, 3, 0], [1, 4, 1]], ()),
        ((6,), [[5, 1, 5]], ()),
        ((6, 2, 2), [[5, 1, 5]], (2, 2)),
        ((4, 3), [[], []], ()),
    ],
)
def test_gradients_of_any_sparse_dim(shape, indices, dense):
    results = []
    for cls in (SparseAdam, Peer):
        weight = nn.Parameter(torch.arange(np.prod(shape), dtype=torch.float64).reshape(shape))
        optimizer = cls([weight], lr=0.1)
        for _ in range(3):
            index = torch.tensor(indices, dtype=torch.int64).reshape(len(indices), -1)
            weight.grad = torch.sparse_coo_tensor(
                index, torch.ones(index.shape[1], *dense).double(), shape, check_invariants=True
            )
            optimizer.step()
        results.append(state_of(optimizer))
    assert_same_state(*results, FLOAT64)


def test_parameters_that_are_not_contiguous():
    results = []
    for cls in (SparseAdam, Peer):
        weight = nn.Parameter(torch.arange(20.0, dtype=torch.float64).reshape(4, 5).t())
        optimizer = cls([weight], lr=0.1)
        for _ in range(3):
            weight.grad = sparse([[4, 0, 4]], np.ones((3, 4)), (5, 4))
            optimizer.step()
        results.append(state_of(optimizer))
    assert_same_state(*results, FLOAT64)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: max(0.0, 1 - step / 4)),  # down to lr = 0
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=True, base_momentum=0.8),
    ],
)
def test_lr_schedulers(schedule):
    results = []
    for cls in (SparseAdam, Peer):
        module = embedding()
        optimizer = cls(module.parameters(), lr=0.1)
        scheduler = schedule(optimizer)
        for step in range(8):
            train(module, optimizer, 1, step)
            scheduler.step()
        results.append(state_of(optimizer))
    assert_same_state(*results, FLOAT64)


# Checkpoints.
@pytest.mark.parametrize(("first", "second"), [(SparseAdam, Peer), (Peer, SparseAdam), (SparseAdam, SparseAdam)])
def test_checkpoints_go_both_ways(first, second):
    module = embedding()
    optimizer = first(module.parameters(), lr=0.05, betas=(0.8, 0.9))
    train(module, optimizer, 10)
    buffer = io.BytesIO()
    torch.save((module.state_dict(), optimizer.state_dict()), buffer)
    train(module, optimizer, 10, start=10)

    other = embedding(seed=9)
    resumed = second(other.parameters())
    buffer.seek(0)
    weights, state = torch.load(buffer, weights_only=True)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    train(other, resumed, 10, start=10)
    compare = assert_bits if first is second else FLOAT64  # a resumed run is the run itself
    assert_same_state(state_of(optimizer), state_of(resumed), compare)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_alike(clone):
    module = embedding(torch.float32)
    optimizer = SparseAdam(module.parameters(), lr=torch.tensor(0.05))
    train(module, optimizer, 5)
    copied_module, copied = clone((module, optimizer))
    before = state_of(optimizer)
    train(copied_module, copied, 5, start=5)
    assert_same_state(before, state_of(optimizer))  # the copy shares nothing
    train(module, optimizer, 5, start=5)
    assert_same_state(state_of(optimizer), state_of(copied))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_parameters_have_float32_states(dtype):
    module = embedding(dtype)
    optimizer = SparseAdam(module.parameters(), lr=0.1)
    expected = [to_numpy(module.weight).copy(), *(np.zeros((30, 4), np.float32) for _ in range(2))]
    for step in range(1, 7):
        if step == 4:  # a checkpoint in mid-run keeps every bit: Optimizer.load_state_dict would cast the states
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = SparseAdam(module.parameters(), lr=0.1)
            optimizer.load_state_dict(state)
            module, optimizer = copy.deepcopy((module, optimizer))
        train(module, optimizer, 1, step)
        gradient = module.weight.grad
        indices, values = to_numpy(gradient._indices()), to_numpy(gradient._values())
        expected = _oracles.adam(*expected, indices, values, step=step, lr=0.1)
        state = optimizer.state[module.weight]
        for got, want in zip((module.weight, state["exp_avg"], state["exp_avg_sq"]), expected, strict=True):
            assert_bits(got, want)
    peer_module = embedding(dtype, seed=1)
    peer = Peer(peer_module.parameters(), lr=1e-2, eps=1e-2)
    train(peer_module, peer, 1)
    optimizer.load_state_dict(peer.state_dict())  # torch's states are of 16 bits
    state = optimizer.state[module.weight]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
    train(module, optimizer, 1)
    assert torch.isfinite(module.weight).all()
