"""sparse_adam_step, and the step of the whole torch optimizer, on a table of embeddings."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bench import _data
from bench._case import Arrays, Case, Contender, Operation, Prepared, WrongResultError
from bench._data import EPSILON, Array, as_numpy, as_torch, torch_bits, widen
from bench._ours import ONE_THREAD, OURS, contenders, refuse_slow, release
from bench._sums import compare, keys, rounding, sums

LR, BETA1, BETA2, EPS = 0.1, 0.9, 0.999, 1e-8
TABLES = ("param", "exp_avg", "exp_avg_sq")
_PERIOD = 1009  # row r of a table equals row r % _PERIOD


def _cases(operation: str) -> tuple[Case, ...]:
    adam = operation == "sparse_adam_step"
    cases = [
        Case(
            operation,
            f"{distribution} {n}" + ("" if dtype == "float32" else f" {dtype}"),
            n,
            partial(_data.rows, distribution, n, dtype),
            dtype,
            series=f"{distribution}, {dtype}",
            quick=_is_quick(adam, distribution, n, dtype),
        )
        for dtype in ("float32", "bfloat16")
        for distribution in ("uniform", "Zipf", "tokens")
        for n in (65_536, 524_288)
        if adam or (dtype == "float32" and (n == 65_536 or distribution == "tokens"))
    ]
    if adam:
        cases += [
            Case(operation, f"small {n}", n, partial(_data.rows, "Zipf", n, "float32", 1000, 8), series="small calls", quick=True)
            for n in (10, 100, 1000)
        ]
    return tuple(cases)


def _is_quick(adam: bool, distribution: str, n: int, dtype: str) -> bool:
    if not adam:
        return distribution == "tokens" and n == 65_536
    return (dtype == "float32" and distribution != "tokens") or (n == 65_536 and distribution == "tokens")


def _block(table: str, width: int) -> Array:
    """The rows that a table repeats: parameters and first moments normal, second moments between 0.01 and 1."""
    rng = np.random.default_rng(TABLES.index(table))
    if table == "exp_avg_sq":
        return rng.uniform(0.01, 1, (_PERIOD, width)).astype(np.float32)
    return rng.standard_normal((_PERIOD, width), np.float32) / np.float32(10)


def make_tables(case: Case, inputs: Arrays, *, state_dtype: str = "float32") -> list[Array]:
    """Parameters in the case's dtype and states, each as stored."""
    shape = tuple(inputs["shape"].tolist())
    dtypes = (case.dtype, state_dtype, state_dtype)
    return [np.resize(_data.narrow(_block(t, shape[-1]), dtype), shape) for t, dtype in zip(TABLES, dtypes, strict=True)]


def _expect(case: Case, inputs: Arrays) -> Arrays:
    """The touched rows after one step, and how far each may lie off: by the rounding of the sum and of each table."""
    touched, g, magnitudes, counts = sums(inputs, case.dtype)
    off_g = rounding(magnitudes, counts, case.dtype)
    width, epsilon = g.shape[1], EPSILON[case.dtype]
    stored = (case.dtype, "float32", "float32")
    p, m, v = (
        widen(_data.narrow(_block(t, width), dtype), dtype)[touched % _PERIOD] for t, dtype in zip(TABLES, stored, strict=True)
    )
    off_m = (1 - BETA1) * off_g + 4 * epsilon * (np.abs(m) + np.abs(g))
    off_v = (1 - BETA2) * (2 * np.abs(g) + off_g) * off_g + 4 * epsilon * (v + g * g)
    m += (g - m) * (1 - BETA1)
    v += (g * g - v) * (1 - BETA2)
    size = LR * np.sqrt(1 - BETA2) / (1 - BETA1)
    root = np.sqrt(v) + EPS
    step = size * m / root
    off_p = size * (off_m + np.abs(m) * off_v / (2 * v)) / root + 4 * epsilon * (np.abs(p) + np.abs(step))
    found = {"rows": touched}
    for name, table, off in zip(TABLES, (p - step, m, v), (off_p, off_m, off_v), strict=True):
        found |= {name: table.astype(np.float32), f"{name} allowed": off.max(axis=1, keepdims=True)}
    return found


def _check(case: Case, inputs: Arrays, expected: Arrays, result: Arrays) -> None:
    """All touched rows of the three tables, and the untouched neighbours of touched rows, which are to stay as they were."""
    rows = expected["rows"]
    neighbours = np.setdiff1d(np.concatenate([rows - 1, rows + 1]), rows)
    neighbours = neighbours[(neighbours >= 0) & (neighbours < inputs["shape"][0])]
    for name in TABLES:
        table = result[name]
        dtype = "bfloat16" if table.dtype == np.uint16 else table.dtype.name
        compare(name, widen(table[rows], dtype), expected[name], expected[f"{name} allowed"])
        before = _data.narrow(_block(name, table.shape[1]), dtype)[neighbours % _PERIOD]
        if not np.array_equal(table[neighbours], before):
            raise WrongResultError(f"{name}: a row was changed that the gradient does not name")


def _floor_bytes(case: Case, inputs: Arrays, expected: Arrays) -> int:
    """Indices and gradient read once; touched rows of parameters and float32 states read and written once."""
    row = inputs["values"].shape[1] * (inputs["values"].itemsize + 4 + 4)
    return int(inputs["indices"].nbytes + inputs["values"].nbytes + 2 * row * len(expected["rows"]))


def count_steps() -> Iterator[int]:
    return itertools.count(1)


# sparse_adam_step


def _sparsekit(case: Case, inputs: Arrays, *, backend: str) -> Prepared:
    import sparsekit

    refuse_slow(backend, inputs["values"].size // 4)
    stored = make_tables(case, inputs)
    param, exp_avg, exp_avg_sq = as_numpy(stored[0], case.dtype), stored[1], stored[2]
    ids, grad = inputs["indices"], as_numpy(inputs["values"], case.dtype)
    counter = count_steps()

    def call(step: int) -> None:
        sparsekit.sparse_adam_step(
            param, exp_avg, exp_avg_sq, ids, grad, step=step, lr=LR, betas=(BETA1, BETA2), eps=EPS, backend=backend
        )

    return Prepared(call, lambda _: dict(zip(TABLES, stored, strict=True)), fresh=lambda: next(counter), release=release)


def _torch(case: Case, inputs: Arrays) -> Prepared:
    """torch.optim.SparseAdam on the same memory, a sparse gradient in its hands. States in the parameter's dtype."""
    import torch

    tables = [as_torch(t, case.dtype) for t in make_tables(case, inputs, state_dtype=case.dtype)]
    param = torch.nn.Parameter(tables[0])
    ids, grad = torch.from_numpy(inputs["indices"]), as_torch(inputs["values"], case.dtype)
    param.grad = torch.sparse_coo_tensor(ids, grad, param.shape, check_invariants=False)
    optimizer: Any = torch.optim.SparseAdam([param], lr=LR, betas=(BETA1, BETA2), eps=EPS)
    optimizer.state[param] = {"step": 0, "exp_avg": tables[1], "exp_avg_sq": tables[2]}
    return Prepared(lambda _: optimizer.step(), lambda _: _read_tensors(tables))


def _read_tensors(tables: list[Any]) -> Arrays:
    return {name: torch_bits(table) for name, table in zip(TABLES, tables, strict=True)}


def _numpy(case: Case, inputs: Arrays) -> Prepared | None:
    """Sort, add.reduceat, and the update on gathered rows."""
    if case.dtype == "bfloat16":
        return None
    p, m, v = tables = make_tables(case, inputs)
    ids, grad = keys({"indices": inputs["indices"], "shape": inputs["shape"]}), inputs["values"]
    counter = count_steps()

    def call(step: int) -> None:
        order = np.argsort(ids, kind="stable")
        rows, heads = np.unique(ids[order], return_index=True)
        g = np.add.reduceat(grad[order], heads, axis=0)
        new_m, new_v = m[rows], v[rows]
        new_m += (g - new_m) * np.float32(1 - BETA1)
        new_v += (g * g - new_v) * np.float32(1 - BETA2)
        m[rows], v[rows] = new_m, new_v
        size = LR * np.sqrt(1 - BETA2**step) / (1 - BETA1**step)
        p[rows] -= np.float32(size) * new_m / (np.sqrt(new_v) + np.float32(EPS))

    return Prepared(call, lambda _: dict(zip(TABLES, tables, strict=True)), fresh=lambda: next(counter))


# optimizer_step


def _optimizer_step(case: Case, inputs: Arrays, *, ours: bool) -> Prepared:
    """step() of SparseAdam on an Embedding's weight, in torch's memory, after a real backward pass, which is not timed."""
    import torch

    import sparsekit.torch

    rows, width = inputs["shape"].tolist()
    tables = [torch.from_numpy(_block(name, width)).repeat(-(-rows // _PERIOD), 1)[:rows] for name in TABLES]
    make: Any = torch.nn.Embedding.from_pretrained
    embedding = make(tables[0], freeze=False, sparse=True)
    (embedding(torch.from_numpy(inputs["indices"][0])) * as_torch(inputs["values"], case.dtype)).sum().backward()
    kind: Any = sparsekit.torch.SparseAdam if ours else torch.optim.SparseAdam
    optimizer = kind(embedding.parameters(), lr=LR, betas=(BETA1, BETA2), eps=EPS)
    optimizer.state[embedding.weight] = {"step": 0, "exp_avg": tables[1], "exp_avg_sq": tables[2]}
    return Prepared(lambda _: optimizer.step(), lambda _: _read_tensors(tables), release=release if ours else lambda: None)


SPARSE_ADAM_STEP = Operation(
    "sparse_adam_step",
    _cases("sparse_adam_step"),
    (*contenders(_sparsekit), Contender("torch", _torch), Contender("numpy", _numpy)),
    _expect,
    _check,
    _floor_bytes,
)

OPTIMIZER_STEP = Operation(
    "optimizer_step",
    _cases("optimizer_step"),
    (
        Contender(OURS, partial(_optimizer_step, ours=True), ours=True),
        Contender(ONE_THREAD, partial(_optimizer_step, ours=True), ours=True, threads=1),
        Contender("torch", partial(_optimizer_step, ours=False)),
    ),
    _expect,
    _check,
    _floor_bytes,
)
