"""coalesce: the sum of duplicate coordinates."""

from functools import partial

import numpy as np

from bench import _coalesce_contenders, _data
from bench._case import Arrays, Case, Operation, WrongResultError
from bench._data import widen
from bench._sums import compare, rounding, sums

_SQUARE = (1_000_000, 1_000_000)
_CUBE = (1000, 1000, 1000)
_DTYPES = ("float32", "float64", "bfloat16", "int64")


def _cases() -> list[Case]:
    cases = [
        Case("coalesce", f"uniform {text}", n, partial(_data.uniform_pairs, n, _SQUARE), series="uniform pairs", quick=n < 10**7)
        for text, n in (("1e5", 100_000), ("1e6", 1_000_000), ("1e7", 10_000_000))
    ]
    n = 1_000_000
    cases += [
        Case("coalesce", f"uniform 1e6 {dtype}", n, partial(_data.uniform_pairs, n, _SQUARE, dtype), dtype)
        for dtype in _DTYPES[1:]
    ]
    cases += [
        Case("coalesce", "3-D 1e6", n, partial(_data.uniform_pairs, n, _CUBE), quick=True),
        Case("coalesce", "unique 1e6", n, partial(_data.unique, n, _SQUARE, ordered=False)),
        Case("coalesce", "sorted 1e6", n, partial(_data.unique, n, _SQUARE, ordered=True), quick=True),
    ]
    cases += [
        Case("coalesce", f"one index 1e6 {dtype}", n, partial(_data.hot, n, _SQUARE, dtype), dtype, quick=dtype == "float32")
        for dtype in _DTYPES
    ]
    cases += [
        Case("coalesce", f"FEM {name}", n, partial(_data.stiffness, *mesh), "float64", series="FEM", quick=n < 2_000_000)
        for name, n, mesh in (("P1 1.2e6", 1_179_648, ("P1", 8)), ("P2 4.7e6", 4_718_592, ("P2", 8)))
    ]
    for distribution in ("uniform", "Zipf", "tokens"):
        cases += [
            Case(
                "coalesce",
                f"rows {distribution} {n}",
                n,
                partial(_data.rows, distribution, n),
                series=f"rows of 64, {distribution}",
                quick=n == 65_536 and distribution != "uniform",
            )
            for n in (65_536, 524_288)
        ]
    cases.append(
        Case("coalesce", "rows Zipf 65536 bfloat16", 65_536, partial(_data.rows, "Zipf", 65_536, "bfloat16"), "bfloat16")
    )
    cases += [
        Case("coalesce", f"small {n}", n, partial(_data.uniform_pairs, n, (1000, 1000)), series="small calls", quick=True)
        for n in (10, 100, 1000)
    ]
    return cases


def _expect(case: Case, inputs: Arrays) -> Arrays:
    flat, total, magnitudes, counts = sums(inputs, case.dtype)
    dims = tuple(inputs["shape"][: len(inputs["indices"])])
    return {
        "indices": np.stack(np.unravel_index(flat, dims)),
        "values": total,
        "allowed": rounding(magnitudes, counts, case.dtype),
    }


def _check(case: Case, inputs: Arrays, expected: Arrays, result: Arrays) -> None:
    indices = result["indices"]
    if indices.shape != expected["indices"].shape:
        raise WrongResultError(f"indices: expected shape {expected['indices'].shape}, got {indices.shape}")
    wrong = (indices != expected["indices"]).any(axis=0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise WrongResultError(f"indices[:, {at}] = {indices[:, at]}, expected {expected['indices'][:, at]}")
    compare("values", widen(result["values"], case.dtype), expected["values"], expected["allowed"])


def _floor_bytes(case: Case, inputs: Arrays, expected: Arrays) -> int:
    """Indices and values read once, unique indices and reduced values written once."""
    indices, values = inputs["indices"], inputs["values"]
    entry = int(indices.nbytes + values.nbytes) // len(values)
    return entry * (len(values) + len(expected["values"]))


COALESCE = Operation("coalesce", tuple(_cases()), _coalesce_contenders.CONTENDERS, _expect, _check, _floor_bytes)
