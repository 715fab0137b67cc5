"""What torch's own tests assert of SparseAdam (and of Adagrad and SGD on sparse gradients), with torch's own inputs."""

from copy import deepcopy

import pytest

pytest.importorskip("torch.nn")
import torch
from _training import close
from torch.nn import Parameter

from sparsekit.torch import SparseAdagrad, SparseAdam, SparseSGD

common = pytest.importorskip(
    "torch.testing._internal.common_optimizers", reason="torch's test inputs cannot be imported", exc_type=ImportError
)
OURS = {torch.optim.SparseAdam: SparseAdam, torch.optim.Adagrad: SparseAdagrad, torch.optim.SGD: SparseSGD}
INFOS = [info for info in common.optim_db if info.optim_cls in OURS]
INPUTS = [
    pytest.param(info, given.kwargs, id=f"{info.optim_cls.__name__} {given.desc}")
    for info in INFOS
    for given in info.optim_inputs_func("cpu")
    # torch's dense optimizers have switches for their implementations, which are no mathematics
    if not given.kwargs.keys() & {"foreach", "fused", "differentiable", "capturable"}
]


pytestmark = pytest.mark.usefixtures("in_each_backend")


def test_torchs_inputs_are_there():
    assert {info.optim_cls for info in INFOS} == set(OURS)
    assert len(INPUTS) >= 12


def rosenbrock(p):
    """The gradient of (1 - x)**2 + 100 * (y - x**2)**2."""
    x, y = p.tolist()
    return torch.tensor([-400 * x * (y - x**2) - 2 * (1 - x), 200 * (y - x**2)], dtype=p.dtype)


def in_parts(gradient, *coordinates):
    """As torch's tests torture an optimizer: each coordinate twice, with a quarter and three quarters."""
    index = torch.tensor([coordinates * 2])
    values = gradient[list(coordinates)]
    return torch.sparse_coo_tensor(index, torch.cat([values / 4, values - values / 4]), (2,), check_invariants=True)


@pytest.mark.parametrize(("info", "kwargs"), INPUTS)
def test_rosenbrock(info, kwargs):
    """The same path as torch's optimizer, in float64; torch's takes weight decay and momentum only with dense gradients."""
    peer_sparse = info.only_supports_sparse_grads
    results = []
    for cls, sparse in ((OURS[info.optim_cls], True), (info.optim_cls, peer_sparse)):
        p = Parameter(torch.tensor([1.5, 1.5], dtype=torch.float64))
        optimizer = cls([p], **deepcopy(kwargs))
        path = []
        for _ in range(40):
            gradient = rosenbrock(p) * 3e-3  # or some of torch's settings diverge
            p.grad = in_parts(gradient, 0, 1) if sparse else gradient
            optimizer.step()
            path.append(p.detach().clone())
        results.append(torch.stack(path))
    close(1e-9, 1e-12)(*results)


@pytest.mark.parametrize("info", [info for info in INFOS if info.metadata_for_sparse], ids=lambda i: i.optim_cls.__name__)
def test_sparse_with_schedulers(info):
    """torch's test of sparse gradients: one coordinate a step, with schedulers; torch's optimizer ends at the same place."""
    kwargs, schedulers = info.metadata_for_sparse
    ends = []
    for cls, sparse in ((OURS[info.optim_cls], True), (info.optim_cls, info.only_supports_sparse_grads)):
        p = Parameter(torch.tensor([1.5, 1.5], dtype=torch.float64))
        optimizer = cls([p], **kwargs)
        made = [scheduler(optimizer) for scheduler in schedulers]
        for step in range(600):
            gradient, coordinate = rosenbrock(p), step % 2
            p.grad = in_parts(gradient, coordinate) if sparse else gradient * torch.eye(2, dtype=torch.float64)[coordinate]
            optimizer.step()
            for scheduler in made:
                plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                scheduler.step(1.0) if plateau else scheduler.step()
        ends.append((p.detach(), torch.tensor(optimizer.param_groups[0]["lr"])))
    close(1e-9, 1e-12)(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1] < kwargs["lr"] or not schedulers


@pytest.mark.parametrize(
    "given",
    [pytest.param(e, id=e.optimizer_error_input.desc) for e in common.optim_error_inputs_func_sparseadam("cpu", torch.float32)],
)
def test_torchs_errors(given):
    """The same types, worded so that torch's expressions match."""
    options = given.optimizer_error_input
    params = [Parameter(torch.randn(2, 3))] if options.params is None else options.params
    expected = pytest.warns if issubclass(given.error_type, Warning) else pytest.raises
    with expected(given.error_type, match=given.error_regex):
        SparseAdam(params, **options.kwargs)


def weight_with_gradient(n=4):
    p = Parameter(torch.arange(3.0 * n, dtype=torch.float64).reshape(n, 3))
    p.grad = torch.sparse_coo_tensor([[0, 2, 0]], torch.ones(3, 3, dtype=torch.float64), (n, 3), check_invariants=True)
    return p


@pytest.mark.parametrize("cls", OURS.values(), ids=lambda c: c.__name__)
def test_state_dict_and_hooks_as_torch_promises(cls):
    p = weight_with_gradient()
    optimizer = cls([p], lr=0.1)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_state_dict_post_hook(lambda _, state: seen.append("post") or state)
    optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("load pre"))
    optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("load post"))
    optimizer.step()
    state = deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    assert seen == ["pre", "post", "load pre", "load post"]
    assert state["state"][0]["step"] == 1
    named = cls([("weight", p)], lr=0.1)
    assert named.state_dict()["param_groups"][0]["param_names"] == ["weight"]


@pytest.mark.parametrize("cls", OURS.values(), ids=lambda c: c.__name__)
def test_a_step_without_gradients_and_one_with_an_empty_gradient(cls):
    p = weight_with_gradient()
    before, gradient = p.detach().clone(), p.grad
    optimizer = cls([p], lr=0.1)
    p.grad = None
    optimizer.step()
    assert not optimizer.state[p] and torch.equal(p, before)
    p.grad = torch.sparse_coo_tensor(size=(4, 3), dtype=torch.float64)
    optimizer.step()
    assert optimizer.state[p]["step"] == 1 and torch.equal(p, before)
    p.grad = gradient
    optimizer.step()
    assert not torch.equal(p, before) and torch.equal(p[1], before[1])


@pytest.mark.parametrize("cls", OURS.values(), ids=lambda c: c.__name__)
def test_tensor_lr_and_number_lr_give_the_same(cls):
    results = []
    for lr in (0.25, torch.tensor(0.25), torch.tensor([0.25])):  # which float32 holds exactly
        p = weight_with_gradient()
        optimizer = cls([p], lr=lr)
        optimizer.step()
        results.append(p.detach())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
