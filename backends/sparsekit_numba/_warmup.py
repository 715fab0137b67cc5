"""Compile ahead of first use, by small calls that reach the kernels of the common dtypes."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from sparsekit_numba._adagrad import sparse_adagrad_step
from sparsekit_numba._adam import sparse_adam_step
from sparsekit_numba._coalesce import coalesce
from sparsekit_numba._sgd import sparse_sgd_step
from sparsekit_numba._topk import topk

_N = 1 << 15  # enough entries for the parallel sort
_PLAIN = SimpleNamespace(
    step=1,
    lr=1e-3,
    decay=1.0,
    lazy=False,
    moments="masked",
    state_dtype="float32",
    rowwise=False,
    keys=None,
    row_step=None,
    last_step=None,
    history=None,
    row_numbers=None,
)
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int64")


def warmup() -> None:
    """coalesce, topk and sparse_adam_step for float16, bfloat16, float32 and float64; coalesce and topk for int64; Adagrad and
    SGD for float32. Adam's other modes are compiled on first use."""
    rng = np.random.default_rng(0)
    narrow, broad = rng.integers(0, 100, (2, _N)), rng.integers(0, 2**30, (2, _N))
    few = np.ascontiguousarray(broad[:, :100])  # the short way
    for dtype in _DTYPES:
        storage = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        values = np.ones((_N, 2), storage)
        for indices, width in ((narrow, 1), (broad, 1), (narrow, 2), (broad[:1], 2), (np.sort(narrow[:1]), 2), (few, 1)):
            for inverse in (False, True):
                coalesce(
                    indices,
                    np.ascontiguousarray(values[: indices.shape[1], :width]),
                    (2**30,) * len(indices),
                    dtype=dtype,
                    reduce="sum",
                    return_inverse=inverse,
                    return_counts=True,
                    check=True,
                )
        magnitudes = rng.integers(0, 100, _N * 4).astype(storage)
        for k in (10, _N * 4 - 10):  # by the filter, by the histogram
            topk([magnitudes], k, dtype=dtype)
        topk([magnitudes[:100]], 10, dtype=dtype)  # and the short way
        if dtype == "int64":
            continue
        state = np.float64 if dtype == "float64" else np.float32
        table = np.zeros((100, 2), storage)
        for rows in (narrow[0], np.sort(narrow[0])):
            sparse_adam_step(
                table,
                np.zeros(table.shape, state),
                np.zeros(table.shape, state),
                rows,
                values,
                dtype=dtype,
                step_size=1e-3,
                beta1=0.9,
                beta2=0.999,
                eps=1e-8,
                weight_decay=0.0,
                maximize=False,
                check=True,
                modes=None,
            )
    table, rows, values = np.zeros((100, 2), np.float32), narrow[0], np.ones((_N, 2), np.float32)
    shared: dict[str, Any] = {"dtype": "float32", "weight_decay": 0.0, "maximize": False, "check": True, "modes": _PLAIN}
    sparse_adagrad_step(table, np.zeros_like(table), rows, values, eps=1e-10, **shared)
    for buffer in (None, np.zeros_like(table)):
        sparse_sgd_step(table, buffer, rows, values, momentum=0.9, dampening=0.0, nesterov=False, **shared)
