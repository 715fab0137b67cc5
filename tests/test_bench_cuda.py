"""``python -m bench cuda`` on the stand-in for a device: contenders run, are checked and timed (by a clock that only counts)."""

import dataclasses

import numpy as np
import pytest
from conftest import CUPY_HOST, require

pytest.importorskip("bench.__main__", reason="bench is run from the checkout and never installed")

from bench import _cuda, _data, _targets, cuda
from bench._case import FAILED, OK, WRONG, Contender, Prepared
from sparsekit import _dlpack, _registry


@pytest.fixture
def clock(monkeypatch, torch):
    """Counts its calls: each takes one second more than the one before."""
    require(CUPY_HOST)
    from _cuda import host_device

    import sparsekit_cupy
    from sparsekit_cupy import _device

    device = host_device()
    monkeypatch.setattr(_device, "find", lambda: device)
    monkeypatch.setitem(_dlpack._SPECIAL_ADAPTERS, "_cuda", "sparsekit._cupy")
    monkeypatch.setitem(_registry._loaded, "cupy", sparsekit_cupy)
    _dlpack._special.cache_clear()
    monkeypatch.setattr(_cuda, "cupy", lambda: device.xp)
    monkeypatch.setattr(_cuda, "torch_device", lambda: "cpu")
    calls = []

    def measure(call):
        call()
        calls.append(call)
        return float(len(calls))

    yield measure
    _dlpack._special.cache_clear()


def tiny(operation):
    """A case of this operation of a size for tests."""
    case = operation.cases[0]
    if operation.name == "cuda topk":
        return dataclasses.replace(case, n=2000, k=30, make=lambda: {"0": _data.normal(1000)["0"], "copies": np.array(2)})
    if operation.name == "cuda coalesce":
        return dataclasses.replace(case, n=500, make=lambda: _data.uniform_pairs(500, (100, 100)))
    return dataclasses.replace(case, n=300, make=lambda: _data.rows("uniform", 300, table_rows=200, width=8))


@pytest.mark.parametrize("operation", _cuda.OPERATIONS, ids=lambda operation: operation.name)
def test_contenders_give_right_results_and_times(clock, operation):
    rows = cuda.measure(operation, tiny(operation), clock, 2, {"gpu": "none"}, copied_bytes=4000)
    status = {row.contender: (row.status, row.note) for row in rows}
    cupyx = status.pop("cupyx sum_duplicates", (OK, ""))  # its matrices take CuPy's arrays only
    assert cupyx[0] in (OK, FAILED)
    assert set(status.values()) == {(OK, "")} and {"sparsekit", "torch"} <= set(status)
    for row in rows:
        assert row.bandwidth > 0 and row.floor_bytes > 0 and row.machine == {"gpu": "none"}
        if row.status == OK:
            assert row.turns == 2 and row.calls == 6 and row.median_s > 0 and row.warmup_s > 0


def test_a_wrong_result_is_not_timed(clock):
    operation = _cuda.TOPK
    nothing = {"positions": np.zeros(30), "values": np.zeros(30)}
    lie = Contender("lie", lambda case, inputs: Prepared(lambda _: None, lambda _: nothing))
    broken = Contender("broken", lambda case, inputs: Prepared(lambda _: 1 / 0, dict))
    other = dataclasses.replace(operation, contenders=(lie, broken, *operation.contenders))
    rows = {row.contender: row for row in cuda.measure(other, tiny(operation), clock, 1, {}, copied_bytes=4000)}
    assert (rows["lie"].status, rows["broken"].status, rows["sparsekit"].status) == (WRONG, FAILED, OK)
    assert "distinct" in rows["lie"].note and "ZeroDivisionError" in rows["broken"].note
    assert rows["lie"].median_s is None


def test_targets_are_of_cases_that_there_are():
    import re

    names = [case.key for operation in _cuda.OPERATIONS for case in operation.cases]
    for target in _targets.CUDA_TARGETS:
        assert [name for name in names if re.fullmatch(target.cases, name)], target.text
