"""Reduce groups of rows in the contract's order: blocks of 32 left to right, then the same over the blocks' results."""

import itertools
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsekit_numba import _pool
from sparsekit_numba._jit import inlined, kernel
from sparsekit_numba._scalars import MEAN, combine, divide, position, prefetch_row, store, widen

Array = NDArray[Any]
Index = NDArray[np.int64]

BLOCK = 32
LEVELS = 8  # of the tree: 32**8 entries in one group
AHEAD = 16  # entries between the prefetch of a row and its sum
LONG = 4096  # groups of more entries are reduced by all threads together
AT_LEAST = 1 << 14  # elements a thread should have to be worth waking
_NONE_LONG = np.empty(0, np.int64)


_WIDE: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.float32),  # a 16-bit float
    np.dtype(np.float32): np.dtype(np.float64),
    np.dtype(np.complex64): np.dtype(np.complex128),
}


def wide_dtype(values: Array) -> np.dtype[Any]:
    """The accumulator's dtype."""
    return _WIDE.get(values.dtype, values.dtype)


def reduce_groups(values: Array, order: Array | None, starts: Index, op: int, form: int) -> Array:
    """``(groups, width)``: the rows ``values[order[starts[s]:starts[s + 1]]]`` of each group, reduced."""
    groups, width = starts.size - 1, values.shape[1]
    out, wide = np.empty((groups, width), values.dtype), wide_dtype(values)
    if values.size < AT_LEAST:  # the short way, where the calls around the kernel count
        no_totals, one_tree = np.empty((0, width), wide), np.empty((LEVELS, width), wide)
        _reduce_range(values, order, starts, op, form, 0, groups, _NONE_LONG, no_totals, one_tree, out)
        return out
    long, long_totals = reduce_long_groups(values, order, starts, op, form)
    tree = partial(np.empty, (LEVELS, width), wide)
    _pool.run(
        [
            partial(_reduce_range, values, order, starts, op, form, first, last, long, long_totals, tree(), out)
            for first, last in split(starts, width)
        ]
    )
    return out


def split(starts: Index, width: int) -> list[tuple[int, int]]:
    """Ranges of groups with about the same number of entries, one a thread; long groups count little, they are done before."""
    groups, entries = starts.size - 1, int(starts[-1])
    pieces = _pool.ranges(entries * max(1, width), AT_LEAST)
    if len(pieces) == 1:
        return [(0, groups)]
    sizes = np.diff(starts)
    if (sizes > LONG).any():
        work = np.cumsum(np.where(sizes > LONG, 1, sizes))
        cuts = np.searchsorted(work, int(work[-1]) * np.arange(1, len(pieces)) // len(pieces))
    else:
        cuts = np.searchsorted(starts, entries * np.arange(1, len(pieces)) // len(pieces))
    edges = [0, *cuts.tolist(), groups]
    return list(itertools.pairwise(edges))


def reduce_long_groups(values: Array, order: Array | None, starts: Index, op: int, form: int) -> tuple[Index, Array]:
    """(which groups have more than LONG entries, their totals in the wide dtype), each reduced by all threads together."""
    long = np.flatnonzero(np.diff(starts) > LONG) if starts[-1] > LONG and _pool.num_threads() > 1 else np.empty(0, np.int64)
    totals = np.empty((long.size, values.shape[1]), wide_dtype(values))
    for total, s in zip(totals, long, strict=True):
        begin, end = int(starts[s]), int(starts[s + 1])
        blocks = np.empty((-(-(end - begin) // BLOCK), values.shape[1]), totals.dtype)
        _pool.run(
            [
                partial(_reduce_blocks, values, order, begin, end, op, form, lo, hi, blocks)
                for lo, hi in _pool.ranges(len(blocks), max(1, LONG // BLOCK // 4))
            ]
        )
        _reduce_wide(blocks, op, np.empty((LEVELS, values.shape[1]), totals.dtype), total)
    return long, totals


@inlined
def reduce_rows(values: Any, order: Any, begin: Any, end: Any, op: Any, form: Any, tree: Any) -> Any:
    """Reduce the sorted entries [begin, end); the total is left in tree[level], and level is returned."""
    blocks = (end - begin + BLOCK - 1) // BLOCK
    for b in range(blocks):
        lo = begin + b * BLOCK
        _reduce_block(values, order, lo, min(lo + BLOCK, end), op, form, tree[0])
        if blocks > 1:
            _carry(tree, 0, b + 1, op)
    return _finish(tree, blocks, op)


@inlined
def _reduce_block(values: Any, order: Any, lo: Any, hi: Any, op: Any, form: Any, total: Any) -> None:
    """At most 32 entries, left to right."""
    width = values.shape[1]
    if width == 1:
        total[0] = reduce_run(values, order, lo, hi, op, form)
        return
    if order is not None and lo + AHEAD < order.size:
        prefetch_row(values, order[lo + AHEAD])
    at = position(order, lo)
    for j in range(width):
        total[j] = widen(values[at, j], form)
    for i in range(lo + 1, hi):
        if order is not None and i + AHEAD < order.size:  # also beyond this group: its rows come next
            prefetch_row(values, order[i + AHEAD])
        at = position(order, i)
        if op <= MEAN:  # its own loop, so that it is vectorised
            for j in range(width):
                total[j] += widen(values[at, j], form)
        else:
            for j in range(width):
                total[j] = combine(op, total[j], widen(values[at, j], form))


@inlined
def reduce_run(values: Any, order: Any, lo: Any, hi: Any, op: Any, form: Any) -> Any:
    x = widen(values[position(order, lo), 0], form)
    for i in range(np.uint64(lo + 1), np.uint64(hi)):
        x = combine(op, x, widen(values[position(order, i), 0], form))
    return x


@inlined
def _carry(tree: Any, level: Any, number: Any, op: Any) -> None:
    """The node ``number`` (from 1) of a level is complete: add it to its parent, and so on while that completes a parent."""
    while True:
        if (number - 1) % BLOCK == 0:
            for j in range(tree.shape[1]):
                tree[level + 1, j] = tree[level, j]
        else:
            for j in range(tree.shape[1]):
                tree[level + 1, j] = combine(op, tree[level + 1, j], tree[level, j])
        if number % BLOCK:
            return
        number //= BLOCK
        level += 1


@inlined
def _finish(tree: Any, leaves: Any, op: Any) -> Any:
    """Carry up the nodes that are not full; returns the level of the root."""
    level, nodes = 0, leaves
    while nodes > 1:
        level += 1
        partial = nodes % BLOCK
        nodes = (nodes + BLOCK - 1) // BLOCK
        if partial and nodes > 1:
            _carry(tree, level, nodes, op)
    return level


@kernel
def _reduce_range(
    values: Any,
    order: Any,
    starts: Any,
    op: Any,
    form: Any,
    first: Any,
    last: Any,
    long: Any,
    long_totals: Any,
    tree: Any,
    out: Any,
) -> None:
    width = values.shape[1]
    known = np.searchsorted(long, first)
    for s in range(first, last):
        begin, end = starts[s], starts[s + 1]
        if width == 1 and end - begin <= BLOCK:  # the common case for scalars, kept in registers
            x = reduce_run(values, order, begin, end, op, form)
            store(out, s, 0, divide(x, end - begin) if op == MEAN else x, form)
            continue
        if known < long.size and long[known] == s:
            level = 0
            for j in range(width):  # numba compiles a loop ten times faster than an assignment of a row
                tree[0, j] = long_totals[known, j]
            known += 1
        else:
            level = reduce_rows(values, order, begin, end, op, form, tree)
        if op == MEAN:
            for j in range(width):
                tree[level, j] = divide(tree[level, j], end - begin)
        for j in range(width):
            store(out, s, j, tree[level, j], form)


@kernel
def _reduce_blocks(values: Any, order: Any, begin: Any, end: Any, op: Any, form: Any, first: Any, last: Any, blocks: Any) -> None:
    for b in range(first, last):
        lo = begin + b * BLOCK
        _reduce_block(values, order, lo, min(lo + BLOCK, end), op, form, blocks[b])


@kernel
def _reduce_wide(blocks: Any, op: Any, tree: Any, total: Any) -> None:
    """The levels of the tree above blocks that are in the wide dtype already."""
    for b in range(blocks.shape[0]):
        for j in range(total.size):
            tree[0, j] = blocks[b, j]
        _carry(tree, 0, b + 1, op)
    level = _finish(tree, blocks.shape[0], op)
    for j in range(total.size):
        total[j] = tree[level, j]
