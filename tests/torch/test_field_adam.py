"""What users reported about the peers (FIELD.md), B-3 and B-7: sparse Adam, on arrays and as torch's optimizer."""

import io

import numpy as np
import pytest
from _tolerance import assert_bits

import sparsekit
from sparsekit import COO

pytest.importorskip("torch.nn")
import torch
from torch import nn

from sparsekit.torch import SparseAdam

pytestmark = pytest.mark.usefixtures("in_each_backend")


def look_up(embedding, ids):
    embedding.zero_grad()
    (embedding(torch.tensor(ids)) ** 2).sum().backward()


def test_b2_41_duplicates_are_summed_before_the_non_linear_update():
    """mlcommons/training PR #453: uncoalesced updates have worse numerics."""
    once, twice = ([torch.zeros(3, 2) for _ in range(3)] for _ in range(2))
    sparsekit.sparse_adam_step(*once, torch.tensor([1]), torch.full((1, 2), 4.0), step=1)
    sparsekit.sparse_adam_step(*twice, torch.tensor([1, 1]), torch.tensor([[1.0, 1.0], [3.0, 3.0]]), step=1)
    for a, b in zip(once, twice, strict=True):
        assert_bits(a, b)


def test_b3_44_weight_decay_on_touched_rows():
    """pytorch#25484: asked for since 2017; here L2 on the rows of the gradient, as torch.optim.Adam's on all."""
    start = np.random.default_rng(0).standard_normal((4, 3))
    dense = nn.Parameter(torch.tensor(start))
    dense.grad = torch.zeros(4, 3, dtype=torch.float64)
    dense.grad[2] = 1.5
    torch.optim.Adam([dense], lr=0.1, weight_decay=0.3).step()
    arrays = [start.copy(), np.zeros((4, 3)), np.zeros((4, 3))]
    sparsekit.sparse_adam_step(*arrays, np.array([2]), np.full((1, 3), 1.5), step=1, lr=0.1, weight_decay=0.3)
    np.testing.assert_allclose(arrays[0][2], dense.detach().numpy()[2], rtol=1e-6)  # their eps stands elsewhere
    assert_bits(arrays[0][[0, 1, 3]], start[[0, 1, 3]])


def test_b3_53_messages_say_what_to_do():
    """pytorch#41966, #84537, transformers#30276: sparse parameters and sparse gradients were taken for each other."""
    with pytest.raises(ValueError, match=r"(?s)[Ss]parse param.*dense param"):
        SparseAdam([nn.Parameter(torch.eye(3).to_sparse())])
    embedding = nn.Embedding(4, 2)  # without sparse=True
    optimizer = SparseAdam(embedding.parameters())
    look_up(embedding, [1])
    with pytest.raises(RuntimeError, match=r"does not support dense gradients.*(sparse=True|Adam)"):
        optimizer.step()


def test_b3_54_dense_gradients_that_are_mostly_zero():
    """pytorch#101370: SparseAdam's semantics for a dense gradient, through its rows that are not zero."""
    gradient = torch.zeros(6, 2)
    gradient[[1, 4]] = torch.tensor([[1.0, -1.0], [2.0, 0.0]])
    rows = COO.from_rows(gradient)
    assert rows.indices.tolist() == [[1, 4]]
    table = [torch.ones(6, 2), torch.zeros(6, 2), torch.zeros(6, 2)]
    sparsekit.sparse_adam_step(*table, rows.indices, rows.values, step=1)
    assert (table[0] != 1).any(1).nonzero().ravel().tolist() == [1, 4]


def test_b3_55_rows_that_are_not_named_stay():
    """pytorch#18404: dense Adam moves a row long after its last gradient."""
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = SparseAdam(embedding.parameters(), lr=0.1)
    look_up(embedding, [1])
    optimizer.step()
    frozen = [x.detach()[1].clone() for x in (embedding.weight, *list(optimizer.state[embedding.weight].values())[1:])]
    for _ in range(5):
        look_up(embedding, [2, 2])
        optimizer.step()
    state = optimizer.state[embedding.weight]
    for before, now in zip(frozen, (embedding.weight, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        assert_bits(now.detach()[1], before)


def test_b3_57_a_dense_gradient_raises_before_any_step_count_moves():
    """pytorch#101370: earlier parameters' step was bumped, then came the error."""
    good, bad = nn.Embedding(5, 3, sparse=True), nn.Embedding(5, 3)
    optimizer = SparseAdam([good.weight, bad.weight])
    look_up(good, [1])
    optimizer.step()
    weight = good.weight.detach().clone()
    look_up(good, [1])
    look_up(bad, [1])
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert optimizer.state[good.weight]["step"] == 1 and not optimizer.state.get(bad.weight)
    assert_bits(good.weight, weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_b3_59_small_gradients_in_16_bits(dtype):
    """torch 2.13: g = 1e-3, lr = 0.1 gave -inf in one step, since 1e-6 * 0.001 and eps are 0 in float16."""
    weight = nn.Parameter(torch.zeros(4, 1, dtype=dtype))
    optimizer = SparseAdam([weight], lr=0.1)
    weight.grad = torch.sparse_coo_tensor(
        torch.tensor([[2]]), torch.full((1, 1), 1e-3, dtype=dtype), (4, 1), check_invariants=True
    )
    optimizer.step()
    assert weight.detach()[2].item() == pytest.approx(-0.1, rel=2**-8)
    assert weight.detach()[[0, 1, 3]].tolist() == [[0], [0], [0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b3_61_62_resumed_to_the_bit(dtype):
    """pytorch#116507, dgl#5270, graphstorm#75: no checkpoints, or states cast by loading."""

    def fresh():
        torch.manual_seed(0)
        embedding = nn.Embedding(8, 4, sparse=True, dtype=dtype)
        return embedding, SparseAdam(embedding.parameters(), lr=0.1)

    def train(embedding, optimizer, steps):
        for step in steps:
            look_up(embedding, [step % 8, 3, 3])
            optimizer.step()

    straight, resumed = fresh(), fresh()
    train(*straight, range(8))
    train(*resumed, range(4))
    buffer = io.BytesIO()
    torch.save([part.state_dict() for part in resumed], buffer)
    buffer.seek(0)
    resumed = fresh()
    for part, state in zip(resumed, torch.load(buffer), strict=True):
        part.load_state_dict(state)
    train(*resumed, range(4, 8))
    assert_bits(straight[0].weight, resumed[0].weight)
    for name in ("exp_avg", "exp_avg_sq"):
        one, two = (optimizer.state[embedding.weight][name] for embedding, optimizer in (straight, resumed))
        assert one.dtype == torch.float32
        assert_bits(one, two)


def test_b3_63_torchs_defaults():
    """mlcommons/training PR #622: another eps trains another model."""
    weight = nn.Parameter(torch.zeros(2, 2))
    defaults = torch.optim.SparseAdam([weight]).defaults
    assert SparseAdam([weight]).defaults.items() >= defaults.items()
    table = [np.zeros((2, 2)) for _ in range(3)]
    explicit = [np.zeros((2, 2)) for _ in range(3)]
    call = (np.array([1]), np.full((1, 2), 1e-7))  # so small that eps shows
    sparsekit.sparse_adam_step(*table, *call, step=1)
    sparsekit.sparse_adam_step(*explicit, *call, step=1, **defaults)
    for a, b in zip(table, explicit, strict=True):
        assert_bits(a, b)


def test_b7_94_parameters_go_in_as_they_are():
    """vllm#56161, deepmd-kit#5566: BufferError for a tensor that requires grad."""
    weight = nn.Parameter(torch.tensor([[3.0, -4.0], [1.0, 2.0]]))
    assert sparsekit.topk(weight, 1).values.tolist() == [-4.0]
    assert sparsekit.coalesce(torch.tensor([0, 0]), weight, (1, 2)).values.tolist() == [[4.0, -2.0]]
    assert COO.from_rows(weight).nnz == 2
    sparsekit.sparse_adam_step(weight, torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([0]), torch.ones(1, 2), step=1)
    assert weight.requires_grad and weight.is_leaf and weight[0, 0].item() < 3.0


def test_b7_100_a_write_is_noticed_by_autograd():
    """A NumPy write through DLPack left the version as it was: backward gave 200 instead of 2, without an error."""
    weight = nn.Parameter(torch.ones(1, 1))
    loss = (weight * weight).sum()
    sparsekit.sparse_adam_step(weight, torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor([0]), torch.ones(1, 1), step=1, lr=99.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
