"""Entries sorted by coordinate: what coalesce and the optimizer steps begin with."""

from typing import Any, NamedTuple

from sparsekit_cupy._device import Device

_TILE = 2048  # as in group.cu


class Groups(NamedTuple):
    """Sorted entries as words (see group.cu), and the number of runs of equal coordinates."""

    words: Any  # uint64 (n,): bits of the coordinate above position_bits bits of the entry's position
    position_bits: int
    tile_ends: Any  # int64: runs that begin in the tiles up to and including each
    bad: Any  # int32 (1,): not 0 where an index lies outside its dimension

    @property
    def runs(self) -> Any:
        """Their number, int64 (1,) on the device."""
        return self.tile_ends[-1:]

    def starts(self, device: Device, runs: int, inverse: Any = None) -> Any:
        """Where each run begins, and at the end n: int64 ``(runs + 1,)``, where ``runs`` may be an upper bound."""
        start = device.xp.empty(runs + 1, device.xp.int64)
        n = self.words.size
        args = (self.words, n, self.position_bits, self.tile_ends, start, inverse)
        device.launch("group.cu", "sparsekit_write_starts", device.blocks(n, _TILE), 256, args)
        return start


def group(device: Device, indices: Any, dims: tuple[int, ...]) -> Groups:
    """Sort the entries of ``indices (sparse_ndim, n)``, n > 0, by coordinate, and within one by position. Waits for nothing.

    Cost: one radix sort of 8 bytes an entry where the bits of all dims and of n fit 64, else an index sort for each 64 bits.
    """
    xp, n = device.xp, indices.shape[1]
    bits = [max(dim - 1, 0).bit_length() for dim in dims]
    position_bits = (n - 1).bit_length()
    bad = xp.zeros(1, xp.int32)
    if sum(bits) + position_bits <= 64:
        words = _pack(device, indices, dims, bits, position_bits, bad)
        words.sort()
    else:
        words = _rank(device, indices, dims, bits, position_bits, bad)
    tile_heads = xp.empty(-(-n // _TILE), xp.int64)
    device.launch("group.cu", "sparsekit_count_heads", device.blocks(n, _TILE), 256, (words, n, position_bits, tile_heads))
    return Groups(words, position_bits, xp.cumsum(tile_heads), bad)


def _pack(device: Device, indices: Any, dims: tuple[int, ...], bits: list[int], position_bits: int, bad: Any) -> Any:
    """Words of these dimensions, above ``position_bits`` bits of the entry's position (0: without it)."""
    xp, n = device.xp, indices.shape[1]
    if not dims:
        return xp.arange(n, dtype=xp.uint64)
    words, shift = xp.empty(n, xp.uint64), position_bits
    for axis in reversed(range(len(dims))):
        first = axis == len(dims) - 1
        args = (indices[axis], n, dims[axis], bits[axis], shift, int(first), int(position_bits > 0), words, bad)
        device.launch("group.cu", "sparsekit_pack", device.blocks(n), 256, args)
        shift += bits[axis]
    return words


def _rank(device: Device, indices: Any, dims: tuple[int, ...], bits: list[int], position_bits: int, bad: Any) -> Any:
    """Sorted words in which the number of the run takes the place of a coordinate too wide for one word."""
    xp, n = device.xp, indices.shape[1]
    if 2 * position_bits > 64:
        raise NotImplementedError(f"coordinates of {sum(bits)} bits are sorted for at most 2**32 entries, got {n}")
    order: Any = None
    is_head, end = xp.zeros(n, xp.bool_), len(dims)
    keys = []
    while end:
        begin = end - 1
        while begin and sum(bits[begin - 1 : end]) <= 64:
            begin -= 1
        key = _pack(device, indices[begin:end], dims[begin:end], bits[begin:end], 0, bad)
        order = xp.argsort(key) if order is None else order[xp.argsort(key[order])]
        keys.append(key)
        end = begin
    for key in keys:
        ordered = key[order]
        is_head[1:] |= ordered[1:] != ordered[:-1]
    rank = xp.cumsum(is_head, dtype=xp.uint64)
    return (rank << xp.uint64(position_bits)) | order.astype(xp.uint64)
