"""torch tensors in and out: never copied, never left with a stale graph, never mixed with other kinds."""

import importlib
import itertools

import _cases
import _oracles
import numpy as np
import pytest
from _tolerance import assert_bits, assert_coo, to_numpy

import sparsekit

pytest.importorskip("torch.nn")
import torch

DTYPES = ("bool", "int8", "int64", "uint16", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def tensor(x, requires_grad=False):
    """A torch tensor of x's own type, bfloat16 included."""
    if x.dtype == _oracles.BFLOAT16:
        t = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    else:
        t = torch.from_numpy(x.copy())
    return t.requires_grad_(requires_grad)


def adam_tensors(dtype, seed=0, rows=30, table=9, requires_grad=True):
    rng = np.random.default_rng(seed)
    state = np.float64 if dtype == "float64" else np.float32
    arrays = [
        _cases.numbers(rng, (table, 4), dtype),
        rng.standard_normal((table, 4)).astype(state),
        rng.random((table, 4)).astype(state),
        rng.integers(0, table, (1, rows)),
        _cases.numbers(rng, (rows, 4), dtype),
    ]
    return arrays, [tensor(a, requires_grad and i == 0) for i, a in enumerate(arrays)]


@pytest.fixture
def seen(monkeypatch, cpu_backend):
    """Addresses of the arrays that reach the backend, and of those that leave it, by function."""
    module = importlib.import_module(f"sparsekit_{cpu_backend}")
    addresses = {}

    def flat(x):
        return [x] if isinstance(x, np.ndarray) else [y for part in x for y in flat(part)] if isinstance(x, list | tuple) else []

    for name in ("coalesce", "topk", "sparse_adam_step", "is_coalesced"):
        original = getattr(module, name)

        def wrapped(*args, _name=name, _original=original, **options):
            result = _original(*args, **options)
            ins, outs = flat([*args, *options.values()]), flat([result])
            addresses[_name] = (
                [x.__array_interface__["data"][0] for x in ins],
                [x.__array_interface__["data"][0] for x in outs],
            )
            return result

        monkeypatch.setattr(module, name, wrapped)
    return addresses


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_coalesce_copies_nothing(cpu_backend, seen, dtype, requires_grad):
    if requires_grad and dtype in ("bool", "int8", "int64", "uint16"):
        pytest.skip("torch differentiates floats only")
    case = _cases.case(3, (6, 7), (2, 3), 50, dtype)
    indices, values = tensor(case.indices), tensor(case.values, requires_grad)
    coo, inverse, counts = sparsekit.coalesce(
        indices, values, case.shape, return_inverse=True, return_counts=True, backend=cpu_backend
    )
    ins, outs = seen["coalesce"]
    assert {indices.data_ptr(), values.data_ptr()} <= set(ins)
    for out in (coo.indices, coo.values, inverse, counts):
        assert type(out) is torch.Tensor and not out.requires_grad
        assert out.data_ptr() in outs
    expected = _oracles.coalesce(case.indices, case.values)
    assert coo.values.dtype == values.dtype
    assert_coo(coo, expected[0], expected[1], case.shape)
    assert_bits(inverse, expected[2])
    assert_bits(counts, expected[3])
    assert values._version == indices._version == 0
    sparsekit.is_coalesced(indices, backend=cpu_backend)
    assert indices.data_ptr() in seen["is_coalesced"][0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_topk_copies_nothing(cpu_backend, seen, dtype):
    x, y = (_cases.numbers(np.random.default_rng(i), (20, 3), dtype) for i in (0, 1))
    tensors = [tensor(x), torch.nn.Parameter(tensor(y), requires_grad=dtype in _cases.REALS)]
    positions = _oracles.topk([x, y], 17)
    coos = sparsekit.topk(tensors, 17, backend=cpu_backend)
    if dtype not in _cases.COMPLEX:  # a complex number's magnitude has to be computed somewhere
        assert {t.data_ptr() for t in tensors} <= set(seen["topk"][0])
    masks = sparsekit.topk_mask(tensors, 17, backend=cpu_backend)
    for coo, mask, array, ranked in zip(coos, masks, (x, y), positions, strict=True):
        at = np.sort(np.array(ranked, int))
        assert_coo(coo, np.stack(np.unravel_index(at, array.shape)).astype(np.int64), array.ravel()[at], array.shape)
        assert type(coo.values) is type(coo.indices) is torch.Tensor and not coo.values.requires_grad
        assert type(mask) is torch.Tensor and mask.dtype == torch.bool
        assert np.flatnonzero(mask.numpy()).tolist() == at.tolist()


@pytest.mark.parametrize("dtype", _cases.REALS)
def test_adam_step_is_in_place(cpu_backend, seen, dtype):
    arrays, tensors = adam_tensors(dtype)
    pointers = [t.data_ptr() for t in tensors]
    assert sparsekit.sparse_adam_step(*tensors, step=3, backend=cpu_backend) is None
    assert set(pointers) <= set(seen["sparse_adam_step"][0])
    assert pointers == [t.data_ptr() for t in tensors]
    for got, want in zip(tensors, [*_oracles.adam(*arrays, step=3), *arrays[3:]], strict=True):
        assert_bits(got, want)


# Autograd.
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stale_graph_raises(backend, which, dtype):
    """pytorch gave 200 where 2 was right after a write that it had not noticed."""
    outputs = [torch.ones(3, 2, dtype=d) for d in (dtype, torch.float32, torch.float32)]
    outputs[which].requires_grad_()
    loss = (outputs[which] * outputs[which]).sum()
    versions = [t._version for t in outputs]
    sparsekit.sparse_adam_step(*outputs, torch.tensor([1]), torch.ones(1, 2, dtype=dtype), step=1, backend=backend)
    assert all(t._version > v for t, v in zip(outputs, versions, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    (outputs[which] * outputs[which]).sum().backward()  # a fresh graph is fine
    assert torch.equal(outputs[which].grad, 2 * outputs[which].detach())


def test_a_write_through_an_alias_is_noticed(backend):
    weight = torch.nn.Parameter(torch.ones(4, 2))
    loss = (weight * weight).sum()
    states = [torch.zeros(4, 2), torch.zeros(4, 2)]
    sparsekit.sparse_adam_step(weight.detach(), *states, torch.tensor([1]), torch.ones(1, 2), step=1, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inputs_keep_their_graphs(backend):
    values = torch.ones(3, 2, requires_grad=True)
    doubled = values * 2
    loss = (doubled * doubled).sum()
    coo = sparsekit.coalesce(torch.tensor([2, 0, 2]), doubled, (4, 2), backend=backend)
    table = [torch.zeros(4, 2) for _ in range(3)]
    sparsekit.sparse_adam_step(*table, torch.tensor([2, 0, 2]), doubled, step=1, backend=backend)
    loss.backward()
    assert torch.equal(values.grad, torch.full((3, 2), 8.0))
    assert coo.values.tolist() == [[2, 2], [4, 4]]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_every_grad_mode(backend, mode):
    with mode():
        table = [torch.zeros(4, 2, requires_grad=i == 0 and mode is torch.enable_grad) for i in range(3)]
        coo = sparsekit.coalesce(torch.tensor([2, 0, 2]), torch.ones(3, 2), (4, 2), backend=backend)
        sparsekit.sparse_adam_step(*table, coo.indices, coo.values, step=1, backend=backend)
        assert (table[0] != 0).any(1).tolist() == [True, False, True, False]


# Layouts and refusals.
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_strided_inputs(backend, dtype):
    case = _cases.case(5, (6, 7), (3,), 40, dtype)
    expected = _oracles.coalesce(case.indices, case.values)
    layouts = {
        "transposed": lambda t: t.t().contiguous().t(),
        "sliced": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
        "offset": lambda t: torch.cat([t[:1], t])[1:],
    }
    for one, two in itertools.product(layouts.values(), repeat=2):
        coo = sparsekit.coalesce(one(tensor(case.indices)), two(tensor(case.values)), case.shape, backend=backend)
        assert_coo(coo, expected[0], expected[1], case.shape)
    ones = torch.ones(1, 1).expand(5, 2)
    assert sparsekit.coalesce(torch.zeros(1, 1, dtype=int).expand(1, 5), ones, (3, 2), backend=backend).values.tolist() == [
        [5, 5]
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strided_outputs_are_updated_in_place(backend, dtype):
    arrays, tensors = adam_tensors(dtype, requires_grad=False)
    tensors[0] = tensors[0].t().contiguous().t()
    tensors[1] = torch.stack([tensors[1]] * 2, -1)[..., 0]
    sparsekit.sparse_adam_step(*tensors, step=1, backend=backend)
    for got, want in zip(tensors[:3], _oracles.adam(*arrays, step=1), strict=True):
        assert_bits(got.contiguous(), want)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_expanded_outputs_are_refused(backend, which):
    outputs = [torch.zeros(4, 2) for _ in range(3)]
    outputs[which] = torch.zeros(1, 2).expand(4, 2)
    with pytest.raises(ValueError, match=r"stride|overlap|expand"):
        sparsekit.sparse_adam_step(*outputs, torch.tensor([1]), torch.ones(1, 2), step=1, backend=backend)
    assert not any(t.any() for t in outputs)


def test_mixed_kinds_are_refused(backend):
    index, ones, table = torch.tensor([1]), torch.ones(1, 2), [torch.zeros(4, 2) for _ in range(3)]
    with pytest.raises(TypeError, match="torch"):
        sparsekit.coalesce(index, ones.numpy(), (4, 2), backend=backend)
    with pytest.raises(TypeError, match="torch"):
        sparsekit.coalesce(index.numpy(), ones, (4, 2), backend=backend)
    with pytest.raises(TypeError, match="torch"):
        sparsekit.topk([ones, ones.numpy()], 1, backend=backend)
    arguments = [*table, index, ones]
    for i in range(5):
        mixed = [a.numpy() if i == j else a for j, a in enumerate(arguments)]
        with pytest.raises(TypeError, match="torch"):
            sparsekit.sparse_adam_step(*mixed, step=1, backend=backend)
    assert not any(t.any() for t in table)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_tensors_that_hold_no_strided_cpu_data_are_refused(backend):
    for wrong in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.ones(2, 2, device="meta")):
        for call in (
            lambda wrong=wrong: sparsekit.coalesce(torch.tensor([0, 1]), wrong, (2, 2), backend=backend),
            lambda wrong=wrong: sparsekit.topk(wrong, 1, backend=backend),
        ):
            with pytest.raises((TypeError, ValueError), match=r"sparse|layout|meta|device"):
                call()


@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn])
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_dtypes_outside_the_table_are_refused(backend, dtype):
    with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
        sparsekit.coalesce(torch.tensor([0]), torch.zeros(1).to(dtype), (2,), backend=backend)


def test_conjugate_and_negative_views_are_right_or_refused(backend):
    """They are flags on the memory of another tensor: reading the memory alone gives wrong signs."""
    z = torch.tensor([1 + 2j, 3 - 4j])
    for view in (z.conj(), torch.conj(z).imag):
        try:
            coo = sparsekit.coalesce(torch.tensor([1, 0]), view, (2,), backend=backend)
        except (TypeError, ValueError):
            continue
        else:
            assert_bits(coo.values, to_numpy(view.resolve_conj().resolve_neg())[::-1].copy())


@pytest.mark.parametrize("index_dtype", [torch.int8, torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64])
def test_index_types_are_kept(backend, index_dtype):
    coo = sparsekit.coalesce(torch.tensor([2, 0, 2]).to(index_dtype), torch.ones(3), torch.Size([4]), backend=backend)
    assert coo.indices.dtype == index_dtype and coo.indices.tolist() == [[0, 2]] and coo.shape == (4,)


# sparsekit.torch.coalesce.
@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "bfloat16", "float64", "complex64"])
@pytest.mark.parametrize(("dims", "dense"), [((6, 7), ()), ((5,), (3,)), ((3, 4, 5), (2, 2)), ((4, 0), ())])
def test_torch_coalesce(backend, dtype, dims, dense):
    import sparsekit.torch

    case = _cases.case(7, dims, dense, 60, dtype)
    t = torch.sparse_coo_tensor(tensor(case.indices), tensor(case.values), case.shape, check_invariants=True)
    indices, values, _, _ = _oracles.coalesce(case.indices, case.values)
    out = sparsekit.torch.coalesce(t, backend=backend)
    assert out.is_coalesced() and out.layout == torch.sparse_coo and out.shape == t.shape
    assert (out.sparse_dim(), out.dense_dim()) == (len(dims), len(dense))
    assert_bits(out.indices(), indices)
    assert_bits(out.values(), values)
    assert t._nnz() == len(case.values) and (not t.is_coalesced() or not len(case.values))
    assert_bits(t._values(), case.values)
    again = sparsekit.torch.coalesce(out, backend=backend)
    assert_bits(again.values(), values)
    if dtype in ("int64", "float64"):
        for reduce in ("max", "prod", "mean"):
            want = _oracles.coalesce(case.indices, case.values, reduce)[1]
            assert_bits(sparsekit.torch.coalesce(t, reduce=reduce, backend=backend).values(), want)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_torch_coalesce_refuses_what_is_not_sparse_coo(backend):
    import sparsekit.torch

    for wrong in (torch.eye(2), torch.eye(2).to_sparse_csr(), np.eye(2), None):
        with pytest.raises(TypeError):
            sparsekit.torch.coalesce(wrong, backend=backend)
    t = torch.eye(2).to_sparse()
    with pytest.raises(ValueError, match="median"):
        sparsekit.torch.coalesce(t, reduce="median", backend=backend)
    bad = torch.sparse_coo_tensor(torch.tensor([[0, -1]]), torch.ones(2), (3,), check_invariants=False)
    with pytest.raises(IndexError, match="= -1"):  # torch's own aborts the process
        sparsekit.torch.coalesce(bad, backend=backend)
