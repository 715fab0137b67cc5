"""The modes of sparsekit.torch's optimizers against dense torch optimizers; checkpoints; one optimizer for a whole model."""

import copy
import io
import pickle

import numpy as np
import pytest

pytest.importorskip("torch.nn")
import torch
from _training import assert_same_state, close, embedding, state_of, train
from torch import nn

from sparsekit.torch import Adam, SparseAdagrad, SparseAdam, SparseSGD

pytestmark = pytest.mark.usefixtures("in_each_backend")


LAZY = {"weight_decay": 0.1, "weight_decay_mode": "decoupled_lazy"}
MOMENTUM = {"momentum": 0.9}
DENSE = close(1e-9, 1e-11)


def pulled(module, step):
    """A loss whose gradient does not depend on the weights, which are not up to date before a flush."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(module.num_embeddings // (1 + step % 3), (6,), generator=generator)  # high ids are rare
    target = torch.randn(6, module.embedding_dim, generator=generator, dtype=torch.float64)
    return (module(ids).double() * target).sum()


def run(module, optimizer, steps, start=0, schedule=None):
    for step in range(start, start + steps):
        if schedule is not None:
            for group in optimizer.param_groups:
                group["lr"] = schedule(step)
        optimizer.zero_grad()
        pulled(module, step).backward()
        optimizer.step()


def schedule(step):
    return 0.0 if step in (4, 5) else 0.02 * (1 + step % 4)


@pytest.mark.parametrize(
    ("ours", "options", "theirs", "their_options"),
    [
        (SparseAdam, {"moments": "exact"}, torch.optim.Adam, {}),
        (SparseAdam, {"moments": "exact", "amsgrad": True}, torch.optim.Adam, {"amsgrad": True}),
        (SparseAdam, {"moments": "exact", **LAZY}, torch.optim.AdamW, {"weight_decay": 0.1}),
        (Adam, {"moments": "exact", **LAZY, "maximize": True}, torch.optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
        (SparseAdagrad, {"lr_decay": 0.01}, torch.optim.Adagrad, {"lr_decay": 0.01}),
        (SparseAdagrad, {"initial_accumulator_value": 0.5}, torch.optim.Adagrad, {"initial_accumulator_value": 0.5}),
        (SparseSGD, {}, torch.optim.SGD, {}),
        (SparseSGD, {"momentum": 0.9, "moments": "exact"}, torch.optim.SGD, {"momentum": 0.9}),
        (
            SparseSGD,
            {"momentum": 0.9, "moments": "exact", "dampening": 0.2},
            torch.optim.SGD,
            {"momentum": 0.9, "dampening": 0.2},
        ),
        (
            SparseSGD,
            {"momentum": 0.9, "moments": "exact", "nesterov": True},
            torch.optim.SGD,
            {"momentum": 0.9, "nesterov": True},
        ),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "-".join(x),
)
def test_flushed_is_what_the_dense_optimizer_gives(ours, options, theirs, their_options):
    modules = embedding(), nn.Embedding(30, 4, dtype=torch.float64)
    modules[1].load_state_dict(modules[0].state_dict())
    optimizer, peer = ours(modules[0].parameters(), lr=0.02, **options), theirs(modules[1].parameters(), lr=0.02, **their_options)
    for start in (0, 7, 25):
        steps = {0: 7, 7: 18, 25: 5}[start]
        run(modules[0], optimizer, steps, start, schedule)
        run(modules[1], peer, steps, start, schedule)
        if start != 7:  # a flush in mid-run changes nothing later
            optimizer.flush()
            DENSE(modules[0].weight, modules[1].weight)
            flushed = state_of(optimizer)
            optimizer.flush()
            assert_same_state(flushed, state_of(optimizer))
    for name, value in peer.state[modules[1].weight].items():
        DENSE(torch.as_tensor(optimizer.state[modules[0].weight][name]), torch.as_tensor(value))


def test_decoupled_lazy_decays_rows_that_never_come():
    """By the product of 1 - lr * weight_decay, whatever lr and weight_decay were at each step."""
    for cls in (SparseAdam, SparseAdagrad, SparseSGD, Adam):
        module = embedding()
        before = module.weight.detach().clone()
        optimizer = cls(module.parameters(), lr=0.1, **LAZY)
        factor = 1.0
        for step in range(5):
            group = optimizer.param_groups[0]
            group["lr"], group["weight_decay"] = 0.1 / (1 + step), 0.1 * step
            factor *= 1 - group["lr"] * group["weight_decay"]
            optimizer.zero_grad()
            module(torch.tensor([0, 1])).sum().backward()
            optimizer.step()
        assert torch.equal(module.weight[2:], before[2:])
        optimizer.flush()
        close(1e-14, 0)(module.weight[2:], before[2:] * factor)


MODES = [
    (SparseAdam, {"moments": "exact", **LAZY, "amsgrad": True, "bias_correction": "row"}),
    (SparseAdam, {"moments": "decayed", "rowwise": True, "weight_decay": 0.01, "weight_decay_mode": "decoupled"}),
    (SparseAdam, {"state_dtype": torch.bfloat16, "stochastic_rounding": True, "seed": 7}),
    (SparseAdagrad, {**LAZY, "rowwise": True, "lr_decay": 0.1}),
    (SparseSGD, {"momentum": 0.9, "moments": "exact", "nesterov": True, **LAZY}),
    (SparseSGD, {"momentum": 0.9, "weight_decay": 0.01}),
    (Adam, {"moments": "decayed", **LAZY}),
]


def saved_and_loaded(optimizer, module, cls, options, dtype):
    buffer = io.BytesIO()
    torch.save((module.state_dict(), optimizer.state_dict()), buffer)
    buffer.seek(0)
    weights, state = torch.load(buffer, weights_only=True)
    other = embedding(dtype, seed=9)
    other.load_state_dict(weights)
    resumed = cls(other.parameters(), **options)
    resumed.load_state_dict(state)
    return other, resumed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cls", "options"), MODES, ids=lambda x: x.__name__ if isinstance(x, type) else "-".join(x))
def test_5_and_5_steps_are_10_steps_to_the_bit(cls, options, dtype):
    """Through a checkpoint read with weights_only, through copies and pickles, and the states keep their dtypes."""
    module = embedding(dtype)
    optimizer = cls(module.parameters(), lr=0.05, **options)
    run(module, optimizer, 5)
    others = [
        saved_and_loaded(optimizer, module, cls, options, dtype),
        copy.deepcopy((module, optimizer)),
        pickle.loads(pickle.dumps((module, optimizer))),
    ]
    run(module, optimizer, 5, start=5)
    optimizer.flush()
    for other, resumed in others:
        run(other, resumed, 5, start=5)
        resumed.flush()
        assert_same_state(state_of(optimizer), state_of(resumed))
    for name, value in optimizer.state[module.weight].items():
        if name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum", "momentum_buffer"):
            assert value.dtype == options.get("state_dtype", torch.float32)


@pytest.mark.parametrize(
    ("theirs", "their_options", "ours", "options", "is_sparse"),
    [
        (torch.optim.SparseAdam, {}, SparseAdam, {}, True),
        (torch.optim.SparseAdam, {}, Adam, {}, True),
        (torch.optim.Adam, {"amsgrad": True}, SparseAdam, {"moments": "exact"}, False),
        (torch.optim.AdamW, {}, SparseAdam, {"moments": "exact", "weight_decay_mode": "decoupled_lazy"}, False),
        (torch.optim.AdamW, {}, Adam, {"moments": "exact", "weight_decay_mode": "decoupled_lazy"}, False),
        (torch.optim.Adagrad, {}, SparseAdagrad, LAZY, True),
        (torch.optim.SGD, {"momentum": 0.9}, SparseSGD, {"moments": "exact", **LAZY}, False),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)
def test_torchs_checkpoints_are_accepted(theirs, their_options, ours, options, is_sparse):
    """Ours goes on as torch's does; every row is taken to be up to date in what is loaded."""
    module = nn.Embedding(30, 4, sparse=is_sparse, dtype=torch.float64)
    peer = theirs(module.parameters(), lr=0.05, **their_options)
    run(module, peer, 4)
    other = embedding()
    other.load_state_dict(module.state_dict())
    optimizer = ours(other.parameters(), lr=0.01, **options)
    optimizer.load_state_dict(peer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.05
    run(module, peer, 6, start=4)
    run(other, optimizer, 6, start=4)
    optimizer.flush()
    DENSE(other.weight, module.weight)
    for name, value in peer.state[module.weight].items():
        DENSE(torch.as_tensor(optimizer.state[other.weight][name]), torch.as_tensor(value))


def test_states_that_do_not_fit_are_refused_and_nothing_is_loaded():
    module = embedding(torch.float32)
    for cls, options in MODES:
        optimizer = cls(module.parameters(), **options)
        run(module, optimizer, 2)
        for name in set(optimizer.state[module.weight]) - {"step"}:
            bad = copy.deepcopy(optimizer.state_dict())
            value = bad["state"][0][name]
            bad["state"][0][name] = value[:, :-1] if name == "history" else value[:-1]
            before = state_of(optimizer)
            with pytest.raises(ValueError, match=name):
                optimizer.load_state_dict(bad)
            assert_same_state(before, state_of(optimizer))


def test_full_moments_are_refused_by_a_rowwise_optimizer():
    module = embedding()
    peer = torch.optim.SparseAdam(module.parameters())
    run(module, peer, 1)
    with pytest.raises(ValueError, match="exp_avg_sq"):
        SparseAdam(module.parameters(), rowwise=True).load_state_dict(peer.state_dict())


def test_a_checkpoint_without_a_mode_may_go_on_with_it():
    """What a mode needs is made as if every row were up to date; the largest second moment so far is the present one."""
    module = embedding()
    peer = torch.optim.SparseAdam(module.parameters())
    run(module, peer, 3)
    optimizer = SparseAdam(module.parameters(), amsgrad=True, bias_correction="row", moments="exact", **LAZY)
    optimizer.load_state_dict(copy.deepcopy(peer.state_dict()))
    before = peer.state[module.weight]["exp_avg_sq"].clone()
    run(module, optimizer, 1, start=3)
    state = optimizer.state[module.weight]
    optimizer.flush()
    close(0, 0)(state["max_exp_avg_sq"], torch.maximum(before, state["max_exp_avg_sq"]))
    assert (state["row_step"] == 4).all() and (state["last_step"] == 4).all()
    assert state["max_exp_avg_sq"].data_ptr() != state["exp_avg_sq"].data_ptr()


BAD = [
    (SparseAdam, {"weight_decay": -1.0}, "weight_decay"),
    (SparseAdam, {"weight_decay_mode": "lazy"}, "decoupled_lazy"),
    (SparseAdam, {"moments": "all"}, "masked"),
    (SparseAdam, {"bias_correction": "rows"}, "global"),
    (SparseAdam, {"state_dtype": torch.int32}, "state_dtype"),
    (SparseAdam, {"state_dtype": torch.float32}, "state_dtype"),  # the parameter is of float64
    (SparseAdagrad, {"lr": -1.0}, "learning rate"),
    (SparseAdagrad, {"lr_decay": -1.0}, "lr_decay"),
    (SparseAdagrad, {"initial_accumulator_value": -1.0}, "initial_accumulator_value"),
    (SparseAdagrad, {"eps": -1.0}, "epsilon"),
    (SparseSGD, {"momentum": -0.1}, "momentum"),
    (SparseSGD, {"nesterov": True}, "Nesterov"),
    (SparseSGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "Nesterov"),
    (Adam, {"betas": (0.9,)}, "betas"),
]


@pytest.mark.parametrize(("cls", "options", "match"), BAD, ids=lambda x: x.__name__ if isinstance(x, type) else str(x))
def test_bad_options(cls, options, match):
    with pytest.raises(ValueError, match=match):
        cls(embedding().parameters(), **options)


def test_nothing_changes_when_a_step_of_a_mode_raises():
    for cls, options in MODES:
        modules = [embedding(torch.float32, seed=i) for i in range(2)]
        optimizer = cls([m.weight for m in modules], lr=0.05, **options)
        for step in range(2):
            optimizer.zero_grad()
            for module in modules:
                pulled(module, step).backward()
            optimizer.step()
        weight = modules[1].weight
        weight.grad = torch.sparse_coo_tensor([[1, 30]], torch.ones(2, 4), (30, 4), check_invariants=False)
        before = state_of(optimizer)
        with pytest.raises(IndexError, match="30"):
            optimizer.step()
        assert_same_state(before, state_of(optimizer))


def test_hooks_and_every_step_post_hook():
    from torch.optim.optimizer import register_optimizer_step_post_hook

    for cls in (SparseAdam, SparseAdagrad, SparseSGD, Adam):
        module = embedding()
        optimizer = cls(module.parameters(), lr=0.1)
        called = []
        handles = [
            optimizer.register_step_pre_hook(lambda *_, called=called: called.append("pre")),
            optimizer.register_step_post_hook(lambda *_, called=called: called.append("post")),
            register_optimizer_step_post_hook(lambda *_, called=called: called.append("every")),
        ]
        train(module, optimizer, 2)
        for handle in handles:
            handle.remove()
        train(module, optimizer, 1)
        assert called == ["pre", "post", "every"] * 2


def test_stochastic_rounding_moves_what_rounding_to_nearest_does_not():
    """bfloat16 at 1.0 has steps of 2**-8 downwards; lr = 1e-4 never gets there by rounding to nearest."""
    means = {}
    for stochastic in (False, True):
        weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        optimizer = SparseAdam([weight], lr=1e-4, stochastic_rounding=stochastic, seed=3)
        for _ in range(20):
            weight.grad = torch.sparse_coo_tensor(
                torch.arange(64)[None], torch.ones(64, 64, dtype=torch.bfloat16), (64, 64), check_invariants=True
            )
            optimizer.step()
        means[stochastic] = weight.detach().double().mean().item()
    assert means[False] == 1.0
    assert means[True] == pytest.approx(1 - 20e-4, abs=3e-4)


def test_parameters_draw_different_numbers():
    weights = [nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = SparseSGD(weights, lr=1e-3, stochastic_rounding=True)
    for weight in weights:
        weight.grad = torch.sparse_coo_tensor(
            torch.arange(64)[None], torch.ones(64, 64, dtype=torch.bfloat16), (64, 64), check_invariants=True
        )
    optimizer.step()
    assert not torch.equal(*(w.detach() for w in weights))
    assert np.isin([w.detach().double().unique().numpy() for w in weights], [1 - 2.0**-8, 1.0]).all()
