"""What one process of the distributed tests does: ``python _ranks.py JOBS RANK WORLD FOLDER``; results go to the folder."""

import copy
import datetime
import os
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparsekit.torch import Adam, SparseAdam, TopKState, sparse_all_reduce_, sparse_hook, topk_hook

SHAPES = {"rows": ((20, 3), 1), "two sparse": ((4, 5, 2), 2), "scalars": ((30,), 1), "two dense": ((6, 2, 2), 1)}
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def gradient(shape, sparse_dim, dtype, rank):
    """With duplicates; a third of the processes has none at all, each another number of entries."""
    if rank == 1:
        return None
    generator = torch.Generator().manual_seed(100 + rank)
    n = 5 + 4 * rank
    indices = torch.stack([torch.randint(d, (n,), generator=generator) for d in shape[:sparse_dim]])
    values = torch.randn(n, *shape[sparse_dim:], generator=generator, dtype=torch.float64).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def all_reduce(rank, world):
    """Every shape and dtype, sum and mean, always sparse, always dense, and as it decides itself."""
    results = {}
    for name, (shape, sparse_dim) in SHAPES.items():
        for dtype in DTYPES:
            for op in ("sum", "mean"):
                for max_density in (None, 0.0, 1e9):
                    p = nn.Parameter(torch.zeros(shape, dtype=dtype))
                    p.grad = gradient(shape, sparse_dim, dtype, rank)
                    traffic = sparse_all_reduce_(p, op=op, max_density=max_density)
                    results[name, dtype, op, max_density] = p.grad, traffic.sent, traffic.dense
    return results


def unused_and_empty(rank, world):
    """Parameters together: unused everywhere, an empty gradient, dense ones, dense on one process only."""
    params = [nn.Parameter(torch.zeros(4, 2)) for _ in range(4)]
    params[1].grad = torch.sparse_coo_tensor(size=(4, 2))
    params[2].grad = torch.full((4, 2), float(rank + 1))
    if rank == 0:
        params[3].grad = torch.ones(4, 2)
    sparse_all_reduce_(params)
    return [p.grad for p in params]


def own_switch(rank, world):
    """Few entries stay sparse, many go as dense ones, though the processes have different numbers of them."""
    sent = {}
    for n in (2, 400):
        p = nn.Parameter(torch.zeros(500, 4))
        mine = n if rank == 0 else 1
        p.grad = torch.sparse_coo_tensor(torch.arange(mine)[None], torch.ones(mine, 4), (500, 4), check_invariants=True)
        sent[n] = sparse_all_reduce_(p).sent
    return sent


def errors(rank, world):
    """On every process, whichever has the fault; afterwards all are in step again."""
    said = []
    bad = nn.Parameter(torch.zeros(4, 2))
    for spoil in ("index", "kinds"):
        if spoil == "index":
            index = 4 if rank == 1 else 1
            bad.grad = torch.sparse_coo_tensor([[index]], torch.ones(1, 2), (4, 2), check_invariants=False)
        else:
            bad.grad = torch.ones(4, 2) if rank == 0 else torch.ones(4, 2).to_sparse(1)
        before = bad.grad
        try:
            sparse_all_reduce_(bad)
            said.append(None)
        except (ValueError, IndexError) as error:
            said.append((type(error).__name__, str(error)))
        assert bad.grad is before
    total = torch.ones(1)
    dist.all_reduce(total)
    return said, total.item()


def model():
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(40, 6, mode="sum", sparse=True, dtype=torch.float64)
    return nn.Sequential(bag, nn.Linear(6, 3, dtype=torch.float64))


def batch(step, n=16):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(40, (n, 3), generator=generator), torch.randn(n, 3, generator=generator, dtype=torch.float64)


def ddp_sparse(rank, world):
    """A mixed model by one optimizer: each process on its part of every batch, gradients averaged by sparse_hook."""
    net = model()
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, sparse_hook)
    optimizer = Adam(net.parameters(), lr=0.05)
    for step in range(6):
        ids, target = (x.chunk(world)[rank] for x in batch(step))
        optimizer.zero_grad()
        ((ddp(ids) - target) ** 2).mean().backward()
        assert net[0].weight.grad.is_sparse
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def ddp_topk(rank, world):
    """topk_hook on a mixed model: the residuals, and the same run resumed in the middle."""
    results = {}
    net = model()
    ddp = DistributedDataParallel(net)
    state = TopKState(net.parameters(), ratio=0.3)
    ddp.register_comm_hook(state, topk_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    plain = model()
    for step in range(8):
        if step == 4:
            saved = copy.deepcopy((net.state_dict(), state.state_dict())), pickle.dumps(state)
        ids, target = (x.chunk(world)[rank] for x in batch(step))
        before = {n: r.clone() for n, r in state.residuals.items()}
        plain.load_state_dict(net.state_dict())
        plain.zero_grad()
        ((plain(ids) - target) ** 2).mean().backward()
        optimizer.zero_grad()
        ((ddp(ids) - target) ** 2).mean().backward()
        if step == 5:
            mine = plain[1].weight.grad + before[1], plain[1].bias.grad + before[2]
            results["accumulated"], results["residual"] = mine, (state.residuals[1], state.residuals[2])
            results["grads"] = [p.grad for p in net[1].parameters()]
        optimizer.step()
    results["params"] = [p.detach().clone() for p in net.parameters()]
    results["bytes"] = state.bytes_sent, state.bytes_dense

    (weights, state_dict), pickled = saved
    other = model()
    other.load_state_dict(weights)
    resumed = TopKState(other.parameters(), ratio=0.9)
    resumed.load_state_dict(state_dict)
    ddp = DistributedDataParallel(other)
    ddp.register_comm_hook(resumed, topk_hook)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    for step in range(4, 8):
        ids, target = (x.chunk(world)[rank] for x in batch(step))
        optimizer.zero_grad()
        ((ddp(ids) - target) ** 2).mean().backward()
        optimizer.step()
    results["resumed"] = [p.detach().clone() for p in other.parameters()]
    results["pickled ratio"] = pickle.loads(pickled).ratio
    return results


def digits(rank, world):
    """Accuracy on held-out digits and bytes, densely and with 1 % of the coordinates."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    train_x, train_y, test_x, test_y = x[:1397], y[:1397], x[1397:], y[1397:]
    results = {}
    for ratio in (None, 0.01):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        ddp = DistributedDataParallel(net)
        state = TopKState(net.parameters(), ratio=ratio or 1.0)
        if ratio:
            ddp.register_comm_hook(state, topk_hook)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.0)
        generator = torch.Generator().manual_seed(2)
        for _ in range(25):
            for chosen in torch.randperm(len(train_x), generator=generator).split(64)[:-1]:
                mine = chosen.chunk(world)[rank]
                optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(train_x[mine]), train_y[mine]).backward()
                optimizer.step()
        accuracy = (net(test_x).argmax(1) == test_y).double().mean().item()
        results[ratio] = accuracy, state.bytes_sent, state.bytes_dense
    return results


def dies(rank, world):
    """The last process ends without a word; the others are told within the timeout."""
    if rank == world - 1:
        os._exit(3)
    p = nn.Parameter(torch.zeros(4, 2))
    p.grad = torch.ones(4, 2).to_sparse(1)
    optimizer = SparseAdam([p])
    try:
        sparse_all_reduce_(p)
        optimizer.step()
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None


def main():
    jobs, rank, world, folder = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)  # also for all to start, on a busy machine
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timeout)
    results = {job: globals()[job](rank, world) for job in jobs}
    torch.save(results, folder / f"{rank}.pt")
    if jobs != ["dies"]:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
