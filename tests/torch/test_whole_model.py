"""sparsekit.torch.Adam, for sparse and dense parameters: against two optimizers, checkpoints, schedulers, scaling."""

import io

import pytest

pytest.importorskip("torch.nn")
import torch
from _training import assert_same_state, close, embedding, state_of
from torch import nn

from sparsekit.torch import Adam, SparseAdam

pytestmark = pytest.mark.usefixtures("in_each_backend")

LAZY = {"weight_decay": 0.1, "weight_decay_mode": "decoupled_lazy"}
DENSE = close(1e-9, 1e-11)


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum", sparse=True, dtype=dtype), nn.Linear(8, 3, dtype=dtype))


def batch(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(50, (6, 4), generator=generator), torch.randn(6, 3, generator=generator).to(dtype)


def train_model(net, optimizers, steps, start=0, scheduler=None, scaler=None):
    for step in range(start, start + steps):
        ids, target = batch(step, net[1].weight.dtype)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = ((net(ids) - target) ** 2).mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        for optimizer in optimizers:
            optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        if scheduler is not None:
            scheduler.step()
    return loss


@pytest.mark.parametrize(
    ("options", "sparse_options", "dense"),
    [
        ({}, {}, torch.optim.Adam),
        ({"weight_decay": 0.1}, {"weight_decay": 0.1}, torch.optim.Adam),
        ({**LAZY, "amsgrad": True, "moments": "exact"}, {**LAZY, "amsgrad": True, "moments": "exact"}, torch.optim.AdamW),
    ],
)
def test_one_optimizer_equals_two(options, sparse_options, dense):
    net, twin = model(torch.float64), model(torch.float64)
    optimizer = Adam(net.parameters(), lr=0.02, **options)
    dense_options = {name: options[name] for name in ("weight_decay", "amsgrad") if name in options}
    two = [
        SparseAdam(twin[0].parameters(), lr=0.02, **sparse_options),
        dense(twin[1].parameters(), lr=0.02, **{"weight_decay": 0.0, **dense_options}),
    ]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    train_model(net, [optimizer], 10, scheduler=scheduler)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 3) for o in two]
    for step in range(10):
        train_model(twin, two, 1, step)
        for s in schedulers:
            s.step()
    optimizer.flush()
    two[0].flush()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        close(1e-12, 1e-14)(p, q)
    assert len(optimizer.state_dict()["state"]) == 3


@pytest.mark.parametrize("options", [{}, {**LAZY, "moments": "exact"}])
def test_a_whole_model_resumes_to_the_bit(options):
    net = model()
    optimizer = Adam(net.parameters(), lr=0.02, **options)
    train_model(net, [optimizer], 5)
    buffer = io.BytesIO()
    torch.save((net.state_dict(), optimizer.state_dict()), buffer)
    buffer.seek(0)
    weights, state = torch.load(buffer, weights_only=True)
    train_model(net, [optimizer], 5, start=5)
    other = model()
    other.load_state_dict(weights)
    resumed = Adam(other.parameters())
    resumed.load_state_dict(state)
    train_model(other, [resumed], 5, start=5)
    assert_same_state(state_of(optimizer), state_of(resumed))


def test_with_a_grad_scaler():
    """Scaled by a power of two: the same numbers; a step whose gradient is infinite is left out for all parameters."""
    net, twin = model(), model()
    optimizer, plain = Adam(net.parameters(), lr=0.02), Adam(twin.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    train_model(net, [optimizer], 4, scaler=scaler)
    train_model(twin, [plain], 4)
    assert_same_state(state_of(optimizer), state_of(plain))
    before = state_of(optimizer)
    optimizer.zero_grad()
    scaler.scale(net(batch(9)[0]).sum()).backward()
    net[0].weight.grad._values()[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert_same_state(before, state_of(optimizer))
    assert scaler.get_scale() == 2.0**9


def test_a_parameter_may_change_its_kind_of_gradient():
    """Dense after sparse: every row is named. Sparse after dense: it goes on from the dense states."""
    start = embedding()
    for first, second in (("sparse", "dense"), ("dense", "sparse")):
        weight = nn.Parameter(start.weight.detach().clone())
        expected = nn.Parameter(start.weight.detach().clone())
        optimizer, peer = Adam([weight], lr=0.05, moments="exact"), torch.optim.Adam([expected], lr=0.05)
        for step in range(6):
            generator = torch.Generator().manual_seed(step)
            gradient = torch.randn(30, 4, generator=generator, dtype=torch.float64)
            kind = first if step < 3 else second
            if kind == "sparse":
                gradient[step:-3] = 0
                rows = torch.tensor([*range(step), 27, 28, 29])
                weight.grad = torch.sparse_coo_tensor(rows[None], gradient[rows], (30, 4), check_invariants=True)
            else:
                weight.grad = gradient.clone()
            expected.grad = gradient
            optimizer.step()
            peer.step()
        optimizer.flush()
        DENSE(weight, expected)


def test_dense_parameters_of_several_kinds():
    """Dtypes together, a tensor lr, a closure, memory that is not contiguous: as torch.optim.AdamW."""
    results = []
    for cls, options in ((Adam, {"weight_decay_mode": "decoupled"}), (torch.optim.AdamW, {"fused": True})):
        torch.manual_seed(0)
        params = [
            nn.Parameter(torch.randn(4, 3)),
            nn.Parameter(torch.randn(5, 2, dtype=torch.float64).t()),
            nn.Parameter(torch.randn(3, dtype=torch.bfloat16)),
            nn.Parameter(torch.randn((), dtype=torch.float64)),
        ]
        optimizer = cls(params, lr=torch.tensor(0.01), weight_decay=0.1, **options)

        def closure(optimizer=optimizer, params=params):
            optimizer.zero_grad()
            loss = sum((p.double() ** 2).sum() for p in params)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(4)]
        results.append((losses, params))
    for p, q in zip(results[0][1], results[1][1], strict=True):
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}[p.dtype]
        close(tolerance, 0)(p.double(), q.double())
