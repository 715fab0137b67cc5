"""topk: candidates above a sampled bound, a radix select for the k-th largest of them, then what is not smaller, in order."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsekit_cupy._coalesce import C_TYPES
from sparsekit_cupy._device import Device, current

_TILE, _BINS = 2048, 2048  # as in topk.cu
_DIGIT = 11  # bits
_MOST_IN_BLOCK = 1 << 31  # values that a block counts in 32 bits
SAMPLES = 1 << 15
_FEW = 8 * SAMPLES  # values, of which a sample is not worth its while
_MARGIN = 4  # standard deviations of a count in the sample
_ALL = 1 << 62


class _Source(NamedTuple):
    """Where to select from: a table of parts (see topk.cu), on the device, and how many tiles of it there are to do."""

    c_type: str
    parts: Any
    length: int
    most_tiles: int
    tiles: Any
    reach: Sequence[Any]

    def launch(self, device: Device, name: str, *args: Any) -> None:
        blocks = max(device.blocks(self.most_tiles, 1), self.most_tiles * _TILE // _MOST_IN_BLOCK)
        every = (self.parts, self.length, self.tiles, *args)
        device.launch("topk.cu", f"sparsekit_{name}<{self.c_type}>", blocks, 256, every, self.reach)

    def count_topk(self, device: Device, state: Any) -> tuple[Any, Any]:
        """How many keys are larger than state's, and how many equal it, in tiles up to and including each."""
        counts = device.xp.zeros((2, self.most_tiles), device.xp.int64)
        self.launch(device, "count_topk", state, counts[0], counts[1])
        return device.xp.cumsum(counts[0]), device.xp.cumsum(counts[1])


def topk(arrays: Sequence[Any], k: int, *, dtype: str) -> list[Any]:
    """As in the protocol. Waits for the device only where there are several arrays: once, for how much of each is chosen.

    Reads the arrays about twice, and what reaches a sampled bound (k, some standard deviations more, and about n / 4000) a few
    times. Where the bound is no good, as in an array of few different values, where k is a large part of n, or n is small: once
    for each 11 bits of the dtype (float16 twice, float32 3 times, float64 6 times), and twice more. Memory: 8 bytes for each of
    the k positions, 16 for each candidate, 32 for each 2048 values.
    """
    device = current()
    xp, parts = device.xp, list(filter(len, arrays))
    table = _table(parts)
    tiles, n = (int(total) for total in table[-1, 2:])
    on_device, state, active = xp.asarray(table), xp.empty(2, xp.uint64), xp.empty(3, xp.int64)
    bits = 8 * parts[0].itemsize
    source = _Source(C_TYPES[dtype], on_device, len(parts), tiles, active[2:], parts)
    reaching, capacity = _rank_in_sample(k, n)
    sources, where = [source], [None]
    candidates = xp.empty((2, 4), xp.int64)
    if capacity:
        bound = xp.empty(2, xp.uint64)
        bound[1] = _ALL
        bound[:1] = _sample(device, source, n)[SAMPLES - reaching : SAMPLES - reaching + 1]
        every = source._replace(tiles=on_device[-1, 2:3])
        larger, equal = every.count_topk(device, bound)
        numbers, keys = xp.empty(capacity, xp.int64), xp.empty(capacity, xp.uint64)
        _plan(device, larger, equal, tiles, k, keys, candidates, active, state)
        every._replace(tiles=active[:1]).launch(device, "write_topk", bound, larger, equal, None, numbers, keys)
        most = -(-capacity // _TILE)
        sources = [_Source("u64", candidates, 1, most, active[1:2], [keys]), source]
        where = [numbers, None]
    else:
        _plan(device, None, None, tiles, k, None, candidates, active, state)
    _select(device, sources, bits, state)
    out = xp.empty(k, xp.int64)
    for some, numbers in zip(sources, where, strict=True):
        some.launch(device, "write_topk", state, *some.count_topk(device, state), numbers, out, None)
    if len(arrays) == 1:
        return [out]
    splits = xp.searchsorted(out, on_device[1:-1, 3]).get()  # waits for the device
    device.launch("topk.cu", "sparsekit_localise", device.blocks(k), 256, (on_device, len(parts), k, out))
    ends = itertools.pairwise([0, *map(int, splits), k])
    return [out[slice(*next(ends))] if x.size else out[:0] for x in arrays]


def _table(parts: Sequence[Any]) -> Any:
    """Address, size, number of the first tile and of the first value of each part; at the end the totals."""
    sizes = [x.size for x in parts]
    tiles = itertools.accumulate((-(-size // _TILE) for size in sizes), initial=0)
    values = itertools.accumulate(sizes, initial=0)
    return np.array(list(zip([*(x.data.ptr for x in parts), 0], [*sizes, 0], tiles, values, strict=True)), np.int64)


def _rank_in_sample(k: int, n: int) -> tuple[int, int]:
    """How many of the sample shall reach the bound, so that k of all very likely do; how many of all may; 0 for no use."""
    if n < _FEW:
        return 0, 0
    expected = SAMPLES * k / n
    reaching = math.ceil(expected + _MARGIN * math.sqrt(expected) + _MARGIN)
    most = math.ceil((reaching + _MARGIN * math.sqrt(reaching) + _MARGIN) * n / SAMPLES)
    return (reaching, most) if 4 * most <= n else (0, 0)


def _sample(device: Device, source: _Source, n: int) -> Any:
    """Keys of values at hashed positions, in order."""
    samples = device.xp.empty(SAMPLES, device.xp.uint64)
    args = (source.parts, source.length, SAMPLES, samples)
    device.launch("topk.cu", f"sparsekit_sample<{source.c_type}>", device.blocks(SAMPLES), 256, args, source.reach)
    samples.sort()
    return samples


def _plan(
    device: Device, larger: Any, equal: Any, tiles: int, k: int, keys: Any, candidates: Any, active: Any, state: Any
) -> None:
    capacity, address = (0, 0) if keys is None else (keys.size, keys.data.ptr)
    args = (larger, equal, tiles, k, capacity, address, candidates, active, state)
    device.launch("topk.cu", "sparsekit_plan", 1, 1, args)


def _select(device: Device, sources: Sequence[_Source], bits: int, state: Any) -> None:
    """The k-th largest key, digit by digit, into state."""
    bins = device.xp.zeros(_BINS, device.xp.uint64)
    left = bits
    while left:
        upper, width = left, min(left, _DIGIT)
        left -= width
        for source in sources:
            mask_above = -(1 << upper) if upper < 64 else 0
            source.launch(device, "histogram", state, mask_above, left, (1 << width) - 1, bins)
        device.launch("topk.cu", "sparsekit_next_digit", 1, 256, (bins, state, left))
