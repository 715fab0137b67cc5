"""topk and topk_mask: the k largest magnitudes of one array or of a list of arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import _data
from bench._case import Arrays, Case, Contender, Operation, Prepared, WrongResultError
from bench._data import as_numpy, as_torch, bits, torch_bits, widen
from bench._ours import contenders, refuse_slow, release

_MILLION, _LARGE = 1_000_000, 25_000_000
_RESNET50 = 25_557_032
_SIZES = (("1e6", _MILLION), ("25e6", _LARGE))


def _case(operation: str, name: str, n: int, make: Callable[[], Arrays], k: int, label: str, **options: Any) -> Case:
    return Case(operation, f"{name} k={label}", n, make, k=k, **options)


def _cases(operation: str) -> tuple[Case, ...]:
    mask = operation == "topk_mask"
    cases = []
    for text, n in _SIZES:
        make = partial(_data.normal, n)
        for label, k in (("1000", 1000), ("1%", n // 100), ("10%", n // 10)):
            quick = label == "1%" if n == _MILLION else label in ("1000", "1%") and not mask
            cases.append(_case(operation, f"normal {text}", n, make, k, label, series=f"normal, k = {label}", quick=quick))
    resnet = _case(operation, "ResNet-50", _RESNET50, _data.resnet50_gradients, _RESNET50 // 100, "1%", quick=not mask)
    cases.append(resnet)
    if mask:
        return tuple(cases)
    cases.append(_case(operation, "ResNet-50", _RESNET50, _data.resnet50_gradients, _RESNET50 // 1000, "0.1%"))
    cases += [
        _case(operation, f"network {text}", n, partial(_data.network_gradients, width), n // 100, "1%", quick=width == 1024)
        for text, width, n in (("1.1e6", 1024, 1_126_410), ("25e6", 5000, 25_380_010))
    ]
    one_percent = _LARGE // 100
    cases += [
        _case(operation, f"{name} 25e6", _LARGE, partial(draw, _LARGE), one_percent, "1%")
        for name, draw in (("ascending", _data.ascending), ("constant", _data.constant))
    ]
    for dtype in ("float16", "bfloat16", "float64"):
        make = partial(_data.normal, _LARGE, dtype)
        cases.append(_case(operation, f"normal 25e6 {dtype}", _LARGE, make, one_percent, "1%", dtype=dtype))
    cases += [
        _case(operation, f"small {n}", n, partial(_data.normal, n), n // 10, "10%", series="small calls", quick=True)
        for n in (10, 100, 1000)
    ]
    return tuple(cases)


def _flat(inputs: Arrays) -> NDArray[Any]:
    return np.concatenate([x.reshape(-1) for x in inputs.values()]) if len(inputs) > 1 else inputs["0"].reshape(-1)


def _expect(case: Case, inputs: Arrays) -> Arrays:
    magnitudes = np.abs(widen(_flat(inputs), case.dtype))
    magnitudes.partition(len(magnitudes) - case.k)
    return {"magnitudes": np.sort(magnitudes[len(magnitudes) - case.k :])}


def _check(case: Case, inputs: Arrays, expected: Arrays, result: Arrays) -> None:
    """k distinct positions of the right magnitudes, whichever of equal ones; and the values that stand there."""
    positions = result["positions"]
    if len(positions) != case.k or len(np.unique(positions)) != case.k:
        raise WrongResultError(f"expected {case.k} positions, got {len(positions)}, {len(np.unique(positions))} of them distinct")
    found = _flat(inputs)[positions]
    if "values" in result and not np.array_equal(result["values"], found):
        raise WrongResultError("the values are not those at the positions")
    magnitudes = np.sort(np.abs(widen(found, case.dtype)))
    if not np.array_equal(magnitudes, expected["magnitudes"]):
        at = int(np.argmax(magnitudes != expected["magnitudes"]))
        raise WrongResultError(f"magnitude {case.k - at} is {magnitudes[at]}, expected {expected['magnitudes'][at]}")


def _floor_bytes(case: Case, inputs: Arrays, expected: Arrays) -> int:
    """Every float read once; for k of them a position and a value written, or a bool for each."""
    read = sum(x.nbytes for x in inputs.values())
    if case.operation == "topk_mask":
        return read + case.n
    return read + case.k * 8 + case.k * (read // case.n)


# sparsekit


def _sparsekit(case: Case, inputs: Arrays, *, backend: str) -> Prepared:
    import sparsekit

    refuse_slow(backend, case.n)
    arrays = [as_numpy(x, case.dtype) for x in inputs.values()]
    x = arrays if len(arrays) > 1 else arrays[0]
    starts = np.cumsum([0, *(a.size for a in arrays)])

    def positions(result: Any) -> Arrays:
        coos = result if isinstance(result, list) else [result]
        flat = [
            start + np.ravel_multi_index(tuple(coo.indices), coo.shape)
            for coo, start in zip(coos, starts[:-1], strict=True)
            if coo.nnz
        ]
        values = np.concatenate([bits(coo.values) for coo in coos])
        return {"positions": np.concatenate(flat), "values": values}

    return Prepared(lambda _: sparsekit.topk(x, case.k, backend=backend), positions, release=release)


def _sparsekit_mask(case: Case, inputs: Arrays, *, backend: str) -> Prepared:
    import sparsekit

    refuse_slow(backend, case.n)
    arrays = [as_numpy(x, case.dtype) for x in inputs.values()]
    x = arrays if len(arrays) > 1 else arrays[0]

    def positions(result: Any) -> Arrays:
        masks = result if isinstance(result, list) else [result]
        return {"positions": np.flatnonzero(np.concatenate([mask.reshape(-1) for mask in masks]))}

    return Prepared(lambda _: sparsekit.topk_mask(x, case.k, backend=backend), positions, release=release)


# torch


def _torch(case: Case, inputs: Arrays) -> Prepared:
    """topk of the magnitudes, of a list's concatenation; a mask is scattered into zeros."""
    import torch

    tensors = [as_torch(x, case.dtype) for x in inputs.values()]
    mask = case.operation == "topk_mask"

    def call(_: None) -> Any:
        flat = torch.cat([t.reshape(-1) for t in tensors]) if len(tensors) > 1 else tensors[0].reshape(-1)
        positions = flat.abs().topk(case.k, sorted=False).indices
        if not mask:
            return positions, flat[positions]
        found = torch.zeros(flat.shape, dtype=torch.bool)
        found[positions] = True
        return found

    if mask:
        return Prepared(call, lambda found: {"positions": np.flatnonzero(found.numpy())})
    return Prepared(call, lambda result: {"positions": result[0].numpy(), "values": torch_bits(result[1])})


# NumPy


def _numpy(case: Case, inputs: Arrays) -> Prepared | None:
    """argpartition of the magnitudes, of a list's concatenation; a mask is scattered into zeros."""
    if case.dtype == "bfloat16":
        return None
    arrays = list(inputs.values())
    mask = case.operation == "topk_mask"

    def call(_: None) -> Any:
        flat = np.concatenate([x.reshape(-1) for x in arrays]) if len(arrays) > 1 else arrays[0].reshape(-1)
        positions = np.argpartition(np.abs(flat), flat.size - case.k)[flat.size - case.k :]
        if not mask:
            return positions, flat[positions]
        found = np.zeros(flat.shape, bool)
        found[positions] = True
        return found

    if mask:
        return Prepared(call, lambda found: {"positions": np.flatnonzero(found)})
    return Prepared(call, lambda result: {"positions": result[0], "values": result[1]})


_PEERS = (Contender("torch", _torch), Contender("numpy", _numpy))

TOPK = Operation("topk", _cases("topk"), (*contenders(_sparsekit), *_PEERS), _expect, _check, _floor_bytes)
TOPK_MASK = Operation("topk_mask", _cases("topk_mask"), (*contenders(_sparsekit_mask), *_PEERS), _expect, _check, _floor_bytes)
