"""What torch's own tests assert of SparseAdam (and of Adagrad and SGD on sparse gradients), with torch's own inputs."""

import warnings
from copy import deepcopy

import pytest

import sparsekit

pytest.importorskip("torch.nn")
common = pytest.importorskip(
    "torch.testing._internal.common_optimizers", reason="torch's test inputs cannot be imported", exc_type=ImportError
)
import torch
from _training import close
from torch.nn import Parameter

from sparsekit.torch import SparseAdagrad, SparseAdam, SparseSGD

OURS = {torch.optim.SparseAdam: SparseAdam, torch.optim.Adagrad: SparseAdagrad, torch.optim.SGD: SparseSGD}
INFOS = [info for info in common.optim_db if info.optim_cls in OURS]
INPUTS = [
    pytest.param(info, given.kwargs, id=f"{info.optim_cls.__name__} {given.desc}")
    for info in INFOS
    for given in info.optim_inputs_func("cpu")
    # torch's dense optimizers have switches for their implementations, which are no mathematics
    if not given.kwargs.keys() & {"foreach", "fused", "differentiable", "capturable"}
]


@pytest.fixture(autouse=True)
def _backend(backend):
    with sparsekit.use_backend(backend):
        yield


def test_torchs_inputs_are_there():
    assert {info.optim_cls for info in INFOS} == set(OURS)
    assert len(INPUTS) >= 12


def rosenbrock_gradient(p, sparse):
    """Of (1 - x)**2 + 100 * (y - x**2)**2; sparse, with torch's trick of a duplicate of weight 0.25 + 0.75."""
    x, y = p.tolist()
    dense = torch.tensor([-400 * x * (y - x**2) - 2 * (1 - x), 200 * (y - x**2)], dtype=p.dtype)
    if not sparse:
        return dense
    values = torch.cat([dense * 0.25, dense * 0.75])
    return torch.sparse_coo_tensor([[0, 1, 0, 1]], values, p.shape, check_invariants=True)


@pytest.mark.parametrize(("info", "kwargs"), INPUTS)
def test_rosenbrock(info, kwargs):
    """The same path as torch's optimizer, in float64; torch's own step takes weight decay and momentum only of dense gradients."""
    peer_sparse = info.only_supports_sparse_grads
    results = []
    for cls, sparse in ((OURS[info.optim_cls], True), (info.optim_cls, peer_sparse)):
        p = Parameter(torch.tensor([1.5, 1.5], dtype=torch.float64))
        optimizer = cls([p], **deepcopy(kwargs))
        path = []
        for _ in range(40):
            p.grad = rosenbrock_gradient(p, sparse)
            optimizer.step()
            path.append(p.detach().clone())
        results.append(torch.stack(path))
    close(1e-9, 1e-12)(*results)


@pytest.mark.parametrize("info", [info for info in INFOS if info.metadata_for_sparse], ids=lambda i: i.optim_cls.__name__)
def test_sparse_with_schedulers_comes_near_the_minimum(info):
    """torch's test_rosenbrock_sparse: closer to the minimum than the start, and the dense optimizer's path."""
    kwargs, schedulers = info.metadata_for_sparse
    for schedulers_used in ([], schedulers):
        p = Parameter(torch.tensor([1.5, 1.5], dtype=torch.float64))
        optimizer = OURS[info.optim_cls]([p], **kwargs)
        made = [scheduler(optimizer) for scheduler in schedulers_used]
        start = (p - torch.ones_like(p)).norm().item()
        for step in range(1800 if info.optim_cls is torch.optim.SparseAdam else 400):
            p.grad = rosenbrock_gradient(p, True) if step % 2 else rosenbrock_gradient(p, False).to_sparse()
            optimizer.step()
            for scheduler in made:
                if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(0.0)
                else:
                    scheduler.step()
        assert (p - torch.ones_like(p)).norm().item() < start


ERRORS = [
    pytest.param(given, id=given.optimizer_error_input.desc if hasattr(given, "optimizer_error_input") else given.error_regex)
    for given in common.optim_error_inputs_func_sparseadam("cpu", torch.float32)
]


@pytest.mark.parametrize("given", ERRORS)
def test_torchs_errors(given):
    """The same types, worded so that torch's expressions match."""
    sparsekit_cls, options = SparseAdam, given.optimizer_error_input
    params = [Parameter(torch.randn(2, 3))] if options.params is None else options.params
    if issubclass(given.error_type, Warning):
        with pytest.warns(given.error_type, match=given.error_regex):
            sparsekit_cls(params, **options.kwargs)
    else:
        with pytest.raises(given.error_type, match=given.error_regex), warnings.catch_warnings():
            warnings.simplefilter("error")
            sparsekit_cls(params, **options.kwargs)


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
