"""Optimizer steps: group the gradient's rows, then one pass that sums duplicates and updates each touched row."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._group import group
from sparsekit_numba._jit import kernel
from sparsekit_numba._reduce import LEVELS, reduce_long_groups, reduce_rows, split, wide_dtype
from sparsekit_numba._scalars import FORMS, PLAIN, SUM, as_state, prefetch_row, store
from sparsekit_numba._scratch import Scratch

Array = NDArray[Any]
Index = NDArray[np.int64]

_AHEAD = 4  # groups between the prefetch of a row and its update


def sparse_adam_step(
    param: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    rows: Index,
    values: Array,
    *,
    dtype: str,
    step_size: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> bool:
    form = FORMS.get(dtype, PLAIN)
    if form != PLAIN:
        param, values = param.view(np.uint16), values.view(np.uint16)
    state = exp_avg.dtype.type
    scalars = [state(x) for x in (step_size, 1 - beta1, 1 - beta2, eps, weight_decay)]
    width = values.shape[1]
    with Scratch() as scratch:
        groups = group(rows[None], (param.shape[0],), True, scratch)
        if groups is None:
            return False
        long, totals = reduce_long_groups(values, groups.order, groups.starts, SUM, form)
        _pool.run(
            [
                partial(
                    _adam_range,
                    param,
                    exp_avg,
                    exp_avg_sq,
                    values,
                    groups.indices[0],
                    groups.order,
                    groups.starts,
                    first,
                    last,
                    long,
                    totals,
                    form,
                    *scalars,
                    maximize,
                    np.empty((LEVELS, width), wide_dtype(values)),
                    np.empty((1, width), param.dtype),
                    np.empty(width, state),
                )
                for first, last in split(groups.starts, width)
            ]
        )
    return True


@kernel
def _adam_range(
    param: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    values: Any,
    rows: Any,
    order: Any,
    starts: Any,
    first: Any,
    last: Any,
    long: Any,
    totals: Any,
    form: Any,
    step_size: Any,
    one_minus_beta1: Any,
    one_minus_beta2: Any,
    eps: Any,
    weight_decay: Any,
    maximize: Any,
    tree: Any,
    rounded: Any,
    g: Any,
) -> None:
    """Groups first <= s < last of the gradient onto their rows.

    m += (1 - beta1) * (g - m);  v += (1 - beta2) * (g**2 - v);  p -= step_size * m / (sqrt(v) + eps)   (Kingma and Ba 2015, with
    the bias corrections in step_size, as torch.optim.SparseAdam).
    """
    width = param.shape[1]
    known = np.searchsorted(long, first)
    for s in range(first, last):
        if s + _AHEAD < last:
            ahead = rows[s + _AHEAD]
            prefetch_row(param, ahead)
            prefetch_row(exp_avg, ahead)
            prefetch_row(exp_avg_sq, ahead)
        if known < long.size and long[known] == s:
            level = 0
            for j in range(width):
                tree[0, j] = totals[known, j]
            known += 1
        else:
            level = reduce_rows(values, order, starts[s], starts[s + 1], SUM, form, tree)
        row = rows[s]
        for j in range(width):
            store(rounded, 0, j, tree[level, j], form)  # the gradient as coalesce would give it
        for j in range(width):
            g[j] = as_state(rounded[0, j], form)
        if maximize:
            for j in range(width):
                g[j] = -g[j]
        if weight_decay != 0:
            for j in range(width):
                g[j] += weight_decay * as_state(param[row, j], form)
        for j in range(width):
            m, v = exp_avg[row, j], exp_avg_sq[row, j]
            m += (g[j] - m) * one_minus_beta1
            v += (g[j] * g[j] - v) * one_minus_beta2
            exp_avg[row, j], exp_avg_sq[row, j] = m, v
            store(param, row, j, as_state(param[row, j], form) - step_size * (m / (np.sqrt(v) + eps)), form)
