"""What is measured on a CUDA device: the same operations on CuPy arrays, against torch CUDA and cupyx."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bench import _coalesce, _data, _optim
from bench._case import Arrays, Case, Contender, Operation, Prepared, WrongResultError
from bench._optim import BETA1, BETA2, EPS, LR, TABLES
from bench._ours import OURS

UNCHECKED = "sparsekit, check=False"
_LARGE = 25_000_000


def cupy() -> Any:
    """The array library; tests have a stand-in."""
    import cupy

    return cupy


def torch_device() -> str:
    return "cuda"


def _tensor(x: Any) -> Any:
    import torch

    return torch.from_numpy(x).to(torch_device())


def _cases(operation: Operation, *names: str) -> tuple[Case, ...]:
    found = [replace(case, operation=f"cuda {case.operation}") for case in operation.cases if case.name in names]
    assert len(found) == len(names)
    return tuple(found)


# coalesce


def _coalesce_sparsekit(case: Case, inputs: Arrays, *, check: bool = True) -> Prepared:
    import sparsekit

    indices, values = cupy().asarray(inputs["indices"]), cupy().asarray(inputs["values"])
    shape = tuple(inputs["shape"].tolist())

    def read(coo: Any) -> Arrays:
        return {"indices": coo.indices.get(), "values": coo.values.get()}

    return Prepared(lambda _: sparsekit.coalesce(indices, values, shape, check=check), read)


def _coalesce_torch(case: Case, inputs: Arrays) -> Prepared:
    import torch

    indices, values = _tensor(inputs["indices"]), _tensor(inputs["values"])
    sparse = torch.sparse_coo_tensor(indices, values, inputs["shape"].tolist(), check_invariants=False)

    def read(done: Any) -> Arrays:
        return {"indices": done.indices().cpu().numpy(), "values": done.values().cpu().numpy()}

    return Prepared(lambda _: sparse.coalesce(), read)


def _coalesce_cupyx(case: Case, inputs: Arrays) -> Prepared | None:
    """coo_matrix.sum_duplicates, which works in place: on a copy each time, which is not timed. int32 indices."""
    from cupyx.scipy.sparse import coo_matrix

    if inputs["values"].ndim > 1 or len(inputs["indices"]) != 2:
        return None
    xp = cupy()
    row, column = (xp.asarray(i.astype(np.int32)) for i in inputs["indices"])
    values, shape = xp.asarray(inputs["values"]), tuple(inputs["shape"].tolist())

    def call(matrix: Any) -> Any:
        matrix.sum_duplicates()
        return matrix

    def read(matrix: Any) -> Arrays:
        row, column, data = (a.get() for a in (matrix.row, matrix.col, matrix.data))
        order = np.lexsort((column, row))
        return {"indices": np.stack([row, column])[:, order].astype(np.int64), "values": data[order]}

    return Prepared(call, read, fresh=lambda: coo_matrix((values.copy(), (row.copy(), column.copy())), shape=shape))


COALESCE = replace(
    _coalesce.COALESCE,
    name="cuda coalesce",
    cases=_cases(_coalesce.COALESCE, "uniform 1e6", "uniform 1e7", "rows uniform 524288", "rows Zipf 524288"),
    contenders=(
        Contender(OURS, _coalesce_sparsekit, ours=True),
        Contender(UNCHECKED, partial(_coalesce_sparsekit, check=False), ours=True),
        Contender("torch", _coalesce_torch),
        Contender("cupyx sum_duplicates", _coalesce_cupyx),
    ),
)


# topk: inputs {"0": normal values, "copies": how many times they follow one another, each time 1/64 larger}


def _topk_case(text: str, n: int, label: str, k: int) -> Case:
    def make() -> Arrays:
        part = _data.normal(min(n, _LARGE))["0"]
        return {"0": part, "copies": np.array(n // len(part))}

    return Case("cuda topk", f"normal {text} k={label}", n, make, k=k, series=f"normal, k = {label}")


def _spread(inputs: Arrays) -> Any:
    xp = cupy()
    part = xp.asarray(inputs["0"])
    return xp.concatenate([part * xp.float32(1 + i / 64) for i in range(int(inputs["copies"]))])


def _topk_expect(case: Case, inputs: Arrays) -> Arrays:
    xp = cupy()
    magnitudes = xp.abs(_spread(inputs))
    magnitudes.sort()
    return {"magnitudes": magnitudes[-case.k :].get()}


def _topk_check(case: Case, inputs: Arrays, expected: Arrays, result: Arrays) -> None:
    """k distinct positions that hold the values, of the right magnitudes."""
    distinct = len(np.unique(result["positions"]))
    if distinct != case.k:
        raise WrongResultError(f"expected {case.k} distinct positions, got {distinct}")
    copy, position = np.divmod(result["positions"], len(inputs["0"]))
    there = inputs["0"][position] * (1 + copy / 64).astype(np.float32)
    if not np.array_equal(result["values"], there):
        raise WrongResultError("the values are not those at the positions")
    if not np.array_equal(np.sort(np.abs(there)), expected["magnitudes"]):
        raise WrongResultError("the magnitudes are not the largest")


def _topk_floor(case: Case, inputs: Arrays, expected: Arrays) -> int:
    """Every float read once; k positions and values written."""
    return 4 * case.n + 12 * case.k


def _topk_sparsekit(case: Case, inputs: Arrays) -> Prepared:
    import sparsekit

    x = _spread(inputs)

    def read(coo: Any) -> Arrays:
        return {"positions": coo.indices[0].get(), "values": coo.values.get()}

    return Prepared(lambda _: sparsekit.topk(x, case.k), read)


def _topk_torch(case: Case, inputs: Arrays) -> Prepared:
    import torch

    part = _tensor(inputs["0"])
    x = torch.cat([part * float(np.float32(1 + i / 64)) for i in range(int(inputs["copies"]))])

    def call(_: None) -> Any:
        positions = x.abs().topk(case.k, sorted=False).indices
        return positions, x[positions]

    return Prepared(call, lambda result: {"positions": result[0].cpu().numpy(), "values": result[1].cpu().numpy()})


def _topk_cases() -> tuple[Case, ...]:
    sizes = (("25e6", _LARGE), ("1e9", 40 * _LARGE))
    return tuple(_topk_case(text, n, label, k) for text, n in sizes for label, k in (("1000", 1000), ("1%", n // 100)))


TOPK = Operation(
    "cuda topk",
    _topk_cases(),
    (Contender(OURS, _topk_sparsekit, ours=True), Contender("torch", _topk_torch)),
    _topk_expect,
    _topk_check,
    _topk_floor,
)


# sparse_adam_step


def _adam_sparsekit(case: Case, inputs: Arrays, *, check: bool = False) -> Prepared:
    """Unchecked, as torch's: so neither waits for the device."""
    import sparsekit

    param, exp_avg, exp_avg_sq = tables = [cupy().asarray(t) for t in _optim.make_tables(case, inputs)]
    ids, values = cupy().asarray(inputs["indices"]), cupy().asarray(inputs["values"])
    counter = _optim.count_steps()

    def call(step: int) -> None:
        sparsekit.sparse_adam_step(
            param, exp_avg, exp_avg_sq, ids, values, step=step, lr=LR, betas=(BETA1, BETA2), eps=EPS, check=check
        )

    return Prepared(call, lambda _: {name: t.get() for name, t in zip(TABLES, tables, strict=True)}, fresh=lambda: next(counter))


def _adam_torch(case: Case, inputs: Arrays) -> Prepared:
    import torch

    tables = [_tensor(t) for t in _optim.make_tables(case, inputs)]
    param = torch.nn.Parameter(tables[0])
    ids, values = _tensor(inputs["indices"]), _tensor(inputs["values"])
    param.grad = torch.sparse_coo_tensor(ids, values, param.shape, check_invariants=False)
    optimizer: Any = torch.optim.SparseAdam([param], lr=LR, betas=(BETA1, BETA2), eps=EPS)
    optimizer.state[param] = {"step": 0, "exp_avg": tables[1], "exp_avg_sq": tables[2]}

    def read(_: None) -> Arrays:
        return {name: t.detach().cpu().numpy() for name, t in zip(TABLES, tables, strict=True)}

    return Prepared(lambda _: optimizer.step(), read)


ADAM = replace(
    _optim.SPARSE_ADAM_STEP,
    name="cuda sparse_adam_step",
    cases=_cases(_optim.SPARSE_ADAM_STEP, "uniform 65536", "uniform 524288", "Zipf 524288"),
    contenders=(
        Contender(OURS, _adam_sparsekit, ours=True),
        Contender("sparsekit, check=True", partial(_adam_sparsekit, check=True), ours=True),
        Contender("torch", _adam_torch),
    ),
)

OPERATIONS = (COALESCE, TOPK, ADAM)
Clock = Callable[[Callable[[], Any]], float]


def event_clock() -> Clock:
    """Times calls by events on the current stream, which torch shares: both use the default one."""
    xp = cupy()
    begin, end = xp.cuda.Event(), xp.cuda.Event()

    def clock(call: Callable[[], Any]) -> float:
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(xp.cuda.get_elapsed_time(begin, end)) / 1e3

    return clock


def describe() -> dict[str, Any]:
    """The device and its software."""
    xp = cupy()
    properties = xp.cuda.runtime.getDeviceProperties(xp.cuda.runtime.getDevice())
    return {
        "gpu": properties["name"].decode(),
        "gpu_memory_bytes": properties["totalGlobalMem"],
        "multiprocessors": properties["multiProcessorCount"],
        "cuda_driver": xp.cuda.runtime.driverGetVersion(),
        "cuda_runtime": xp.cuda.runtime.runtimeGetVersion(),
    }
