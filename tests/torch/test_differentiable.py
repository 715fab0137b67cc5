"""sparsekit.torch.coalesce under autograd and torch.compile."""

import shutil

import pytest

pytest.importorskip("torch.nn")
import torch

from sparsekit.torch import coalesce

INDICES = torch.tensor([[0, 1, 1, 0, 2, 1], [2, 0, 0, 2, 1, 0]])
REDUCTIONS = ["sum", "mean", "min", "max", "prod"]


pytestmark = pytest.mark.usefixtures("in_each_backend")


def case(dense=(), dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(6, *dense, dtype=dtype).requires_grad_(), (3, 3, *dense)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dense", [(), (2,)])
@pytest.mark.parametrize("zeros", [[], [0], [1, 2], [1, 2, 5]])
def test_first_and_second_derivatives(reduce, dense, zeros):
    if zeros and reduce in ("min", "max"):
        pytest.skip("ties have no derivative")
    values, shape = case(dense)
    with torch.no_grad():
        values[zeros] = 0

    def f(v):
        return coalesce(INDICES, v, shape, reduce=reduce).values

    assert torch.autograd.gradcheck(f, (values,))
    assert torch.autograd.gradgradcheck(f, (values,))


def test_b1_28_the_gradient_follows_the_inverse_map():
    """pytorch#107097: 0.5/0.5 or 1/1 for two values at one coordinate? A sum passes it to each, a mean halves it."""
    for reduce, want in (("sum", [1.0, 1.0]), ("mean", [0.5, 0.5]), ("max", [0.5, 0.5]), ("prod", [2.0, 2.0])):
        values = torch.tensor([2.0, 2.0], requires_grad=True)
        coalesce(torch.tensor([1, 1]), values, (3,), reduce=reduce).values.sum().backward()
        assert values.grad.tolist() == want
    for reduce, want in (("sum", [1.0, 1.0]), ("mean", [0.5, 0.5])):
        for densify in (False, True):
            values = torch.tensor([2.0, 2.0], requires_grad=True)
            out = coalesce(torch.sparse_coo_tensor([[1, 1]], values, (3,), check_invariants=True), reduce=reduce)
            (out.to_dense() if densify else out.values()).sum().backward()
            assert values.grad.tolist() == want


def test_b1_29_a_huge_shape_is_never_made_dense():
    values = torch.ones(2, requires_grad=True)
    coalesce(torch.tensor([[5, 5]] * 4), values, (10**6,) * 4).values.sum().backward()
    assert values.grad.tolist() == [1, 1]


def test_refusals():
    values, shape = case()
    tensor = torch.sparse_coo_tensor(INDICES, values, shape, check_invariants=True)
    with pytest.raises(TypeError, match="differentiable"):
        coalesce(tensor, reduce="max")
    assert coalesce(tensor.detach(), reduce="max")._nnz() == 3
    with pytest.raises(TypeError, match="indices, values and shape"):
        coalesce(INDICES, values)
    with pytest.raises(IndexError, match="out of range"):
        coalesce(INDICES, values, (3, 2))
    with pytest.raises(ValueError, match="median"):
        coalesce(INDICES, values, shape, reduce="median")


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_opcheck(reduce):
    values, shape = case((2,))
    torch.library.opcheck(torch.ops.sparsekit.coalesce.default, (INDICES, values, list(shape), reduce, None))
    torch.library.opcheck(torch.ops.sparsekit.coalesce.default, (INDICES[0], torch.arange(6), [3], "mean", None))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_torch_compile(compiler):
    if compiler == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")

    def f(indices, values):
        coo = coalesce(indices, values * 2, (3, 3), reduce="mean")
        return coo.values.sin().sum(), coo.indices

    torch._dynamo.reset()
    compiled = torch.compile(f, backend=compiler, fullgraph=True)
    for indices in (INDICES, INDICES[:, :4]):  # another number of entries, in and out
        values = case()[0].detach()[: indices.shape[1]].requires_grad_()
        (got, at), (want, wanted) = compiled(indices, values), f(indices, values)
        assert torch.equal(at, wanted)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(x, values)[0] for x in (got, want)))
