"""Small training runs for the tests of the torch optimizer, and their whole state."""

import copy

import numpy as np
import torch
from _tolerance import assert_bits, to_numpy
from torch import nn

Peer = torch.optim.SparseAdam


def embedding(dtype=torch.float64, n=30, width=4, seed=0):
    torch.manual_seed(seed)
    return nn.Embedding(n, width, sparse=True, dtype=dtype)


def train(module, optimizer, steps, start=0, duplicates=True):
    """Batches that depend on the step alone; gradients that depend on the weights too in float64, where the rounding
    errors that so come back are small.
    """
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        n = module.num_embeddings
        ids = torch.randint(n, (20,), generator=generator) if duplicates else torch.randperm(n, generator=generator)[:20]
        target = torch.randn(20, module.embedding_dim, generator=generator, dtype=torch.float64).to(module.weight.dtype)
        optimizer.zero_grad()
        square = ((module(ids) - target) ** 2).sum()
        (square if module.weight.dtype == torch.float64 else (module(ids) * target).sum()).backward()
        optimizer.step()


def state_of(optimizer):
    """Everything that a step may change, copied."""
    params = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    return params, copy.deepcopy(optimizer.state_dict())


def assert_same_state(one, two, compare=assert_bits):
    (params, state), (other_params, other_state) = one, two
    for a, b in zip(params, other_params, strict=True):
        compare(a, b)
    for group, other_group in zip(state["param_groups"], other_state["param_groups"], strict=True):
        shared = group.keys() & other_group.keys()  # torch's have no modes
        assert shared >= {"params", "lr", "maximize"}
        assert {name: group[name] for name in shared} == {name: other_group[name] for name in shared}
    assert state["state"].keys() == other_state["state"].keys()
    for key, mine in state["state"].items():
        theirs = other_state["state"][key]
        assert list(mine) == list(theirs) and mine.get("step") == theirs.get("step")
        assert type(mine.get("step")) is type(theirs.get("step"))
        for name in set(mine) - {"step"}:
            compare(mine[name], theirs[name])


def close(rtol, atol):
    return lambda a, b: np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=rtol, atol=atol)


FLOAT64 = close(1e-12, 1e-14)


def sparse(indices, values, shape):
    return torch.sparse_coo_tensor(torch.tensor(indices), torch.tensor(values), shape, check_invariants=True)
