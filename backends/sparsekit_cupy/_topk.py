"""topk: a radix select for the k-th largest magnitude, then the positions of what is not smaller, in order."""

import itertools
from collections.abc import Sequence
from typing import Any

from sparsekit_cupy._coalesce import C_TYPES
from sparsekit_cupy._device import current

_TILE, _BINS = 2048, 2048  # as in topk.cu
_DIGIT = 11  # bits
_MOST_IN_BLOCK = 1 << 31  # values that a block counts in 32 bits


def topk(arrays: Sequence[Any], k: int, *, dtype: str) -> list[Any]:
    """As in the protocol. Waits for the device only where there are several arrays: once, for how much of each is chosen.

    Reads the arrays once for each 11 bits of the dtype (float16 twice, float32 3 times, float64 6 times), then twice more to
    write positions. Memory: 8 bytes for each of the k positions, and 32 for each 2048 values.
    """
    device = current()
    xp, c_type = device.xp, C_TYPES[dtype]
    state, counts = xp.empty(2, xp.uint64), xp.zeros(_BINS, xp.uint64)
    state[0], state[1] = 0, k
    args: tuple[Any, ...]
    left = 8 * arrays[0].itemsize
    while left:
        upper, width = left, min(left, _DIGIT)
        left -= width
        for x in filter(len, arrays):
            blocks = max(device.blocks(x.size), x.size // _MOST_IN_BLOCK)
            args = (x, x.size, state, -(1 << upper) if upper < 64 else 0, left, (1 << width) - 1, counts)
            device.launch("topk.cu", f"sparsekit_histogram<{c_type}>", blocks, 256, args)
        device.launch("topk.cu", "sparsekit_next_digit", 1, 256, (counts, state, left))
    ends = [0]  # of each array's tiles
    for x in arrays:
        ends.append(ends[-1] + -(-x.size // _TILE))
    tiles = xp.empty((2, ends[-1]), xp.int64)  # values larger than the k-th largest, and equal to it
    for x, (first, end) in zip(arrays, itertools.pairwise(ends), strict=True):
        if x.size:
            args = (x, x.size, state, tiles[0, first:end], tiles[1, first:end])
            device.launch("topk.cu", f"sparsekit_count_topk<{c_type}>", device.blocks(x.size, _TILE), 256, args)
    larger, equal = xp.cumsum(tiles[0]), xp.cumsum(tiles[1])
    out = xp.empty(k, xp.int64)
    for x, first in zip(arrays, ends, strict=False):
        if x.size:
            args = (x, x.size, state, larger, equal, first, out)
            device.launch("topk.cu", f"sparsekit_write_topk<{c_type}>", device.blocks(x.size, _TILE), 256, args)
    if len(arrays) == 1:
        return [out]
    found = xp.concatenate((state[1:].astype(xp.int64), larger, equal)).get()  # waits for the device
    ties, larger, equal = int(found[0]), found[1 : 1 + ends[-1]], found[1 + ends[-1] :]
    stops = [int(larger[end - 1]) + min(int(equal[end - 1]), ties) if end else 0 for end in ends]
    return [out[start:stop] for start, stop in itertools.pairwise(stops)]
