"""Faults put into the real kernels are caught: by the checker, or by a wrong result."""

import contextlib

import numpy as np
import pytest
from _cases import numbers
from conftest import CUPY_HOST, require

import sparsekit_scipy
from sparsekit._protocol import Modes

COALESCE = {"dtype": "float32", "reduce": "sum", "return_inverse": True, "return_counts": True, "check": True}
ADAM = {"step_size": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0, "maximize": False, "check": True}


def coalesce(backend, send):
    """Runs around 32 and 1024 entries, one of more than 32 chunks, which begins at the last word of 32."""
    rng = np.random.default_rng(0)
    lengths = [31, 34_000, 32, 33, 1500, 1024, 1025]
    rows = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), rng.integers(0, 300, 5000) + 10])
    indices = np.stack([rows, rng.integers(0, 2, rows.size) * (rows >= 10)])
    return backend.coalesce(send(indices), send(numbers(rng, (rows.size, 2), "float32")), (310, 2), **COALESCE)


def is_coalesced(backend, send):
    """Equal neighbours at the begin, at a place where blocks meet, and nowhere."""
    indices = np.arange(1000)[None]
    indices[0, 256:] -= 1
    return [backend.is_coalesced(send(i)) for i in (indices, indices[:, 256:].copy(), np.array([[4, 4, 5]]))]


def topk(backend, send):
    """Ties across tiles and blocks; one alone in its bin."""
    x = numbers(np.random.default_rng(1), 18_000, "float32")
    x[::3], x[5] = 2.5, np.nan
    arrays = [send(x[:10_000]), send(x[10_000:])]
    chosen = [part for k in (3000, 1, 40) for part in backend.topk(arrays, k, dtype="float32")]
    return [*chosen, *backend.topk([send(np.clip(x, -2.5, 2.5))], 40, dtype="float32")]


def adam(backend, send, width=4, rowwise=False, **modes):
    rng = np.random.default_rng(2)
    rows = np.concatenate([np.full(2000, 7), rng.integers(0, 50, 300)])
    tables = [send(np.abs(numbers(rng, (50, w), "float32"))) for w in (width, width, 1 if rowwise else width)]
    tables[1][:, ::2] = 0
    if modes:
        arrays = {name: send(modes.pop(name)) for name in ("last_step", "history")}
        modes = Modes(9, 0.1, 0.999, True, "exact", "float32", rowwise, **arrays)
    values = send(numbers(rng, (rows.size, width), "float32"))
    backend.sparse_adam_step(*tables, send(rows), values, dtype="float32", **ADAM, modes=modes or None)
    return [*tables, *([modes.last_step] if modes else [])]


def exact(backend, send):
    """Rows that make up for steps, wider than a warp, one second moment a row."""
    steps = np.arange(1, 10)
    history = np.stack([0.1 / steps, -0.001 * steps, np.full(9, 0.1)], axis=1)
    return adam(backend, send, 40, rowwise=True, last_step=np.arange(50) % 8, history=history)


# (what runs, file, what it says, what it shall say)
MUTANTS = [
    # barriers removed
    (coalesce, "group.cu", "      __syncthreads();  // warp_heads is written anew\n", ""),
    (coalesce, "group.cu", "      __syncthreads();\n      i64 run", "      i64 run"),
    (coalesce, "reduce.cuh", "    __syncthreads();\n    // Of the runs", "    // Of the runs"),
    (coalesce, "reduce.cuh", "        __syncthreads();  // sums is written anew\n", ""),
    (coalesce, "reduce.cuh", "          __syncthreads();\n          const i64 blocks", "          const i64 blocks"),
    (topk, "topk.cu", "atomicAdd(&bins[bin], (u64)here[bin])", "bins[bin] += here[bin]"),
    (topk, "topk.cu", "atomicAdd(&here[(int)(tile.key[j] >> (int)shift) & (int)mask], 1u)", "here[7]++"),
    (topk, "topk.cu", "  sums[threadIdx.x] = sum;\n  __syncthreads();", "  sums[threadIdx.x] = sum;"),
    (topk, "topk.cu", "    __syncthreads();\n    if (warp < 2)", "    if (warp < 2)"),
    (topk, "topk.cu", "    __syncthreads();\n    const i64 all_larger", "    const i64 all_larger"),
    (topk, "topk.cu", "    __syncthreads();  // the warps' counts are written anew\n", ""),
    (exact, "adam.cu", "    __syncwarp();\n", ""),
    # off by one
    (coalesce, "group.cu", "i < n && is_head(word, i, (int)position_bits)", "i <= n && is_head(word, i, (int)position_bits)"),
    (coalesce, "group.cu", "before += warp_heads[w]", "before += warp_heads[w] + (w == 7)"),
    (coalesce, "group.cu", "run < runs; run", "run <= runs; run"),
    (coalesce, "group.cu", "x >= (u64)dim", "x > (u64)dim - 2"),
    (coalesce, "reduce.cuh", "i < run.last; i++", "i <= run.last; i++"),
    (coalesce, "reduce.cuh", "if (n <= BLOCK) {", "if (n < BLOCK - 1) {"),
    (coalesce, "reduce.cuh", "length <= CHUNK ||", "length <= 2 * CHUNK ||"),
    (coalesce, "reduce.cuh", "if (start[middle] <= at) low", "if (start[middle] < at) low"),
    (coalesce, "coalesce.cu", "r < runs; r", "r < runs - 1; r"),
    (is_coalesced, "group.cu", "threadIdx.x + 1; i < n;", "threadIdx.x + 2; i < n;"),
    (is_coalesced, "group.cu", "if (!larger) atomicAnd", "if (!larger && i % 256) atomicAnd"),
    (topk, "topk.cu", "wanted <= larger + mine[j]", "wanted < larger + mine[j]"),
    (topk, "topk.cu", "equal_before < ties)) {", "equal_before <= ties)) {"),
    (topk, "topk.cu", "const u32 before_lane = (1u << lane) - 1;", "const u32 before_lane = (2u << lane) - 1;"),
    (topk, "topk.cu", "for (int t = threadIdx.x + 1; t < 256; t++)", "for (int t = threadIdx.x + 1; t < 255; t++)"),
    (adam, "adam.cu", "r < count; r += (i64)gridDim.x * blockDim.y", "r <= count; r += (i64)gridDim.x * blockDim.y"),
    (adam, "reduce.cuh", "{ return first / BLOCK; }", "{ return (first + BLOCK) / BLOCK; }"),
    (exact, "adam.cu", "for (i64 i = 0; i < end - last; i++)", "for (i64 i = 0; i <= end - last; i++)"),
    (exact, "adam.cu", "r < count; r += all_warps()", "r < count - 1; r += all_warps()"),
    (exact, "optim.cuh", "lane < 32 && lane < columns", "lane < 31 && lane < columns"),
    (exact, "optim.cuh", "return row[3 * (s - 1)]; }", "return row[3 * s]; }"),
    (topk, "topk.cu", "size = part.size;", "size = part.size + 1;"),
    (topk, "topk.cu", "k <= found && found <= capacity", "k <= found + 1000000 && found <= capacity"),
    (topk, "topk.cu", "k <= found && found <= capacity", "k <= found && found <= capacity + 1000000"),
    (topk, "topk.cu", "parts[middle].*first <= at", "parts[middle].*first < at"),
    (topk, "topk.cu", "(found + TILE - 1) / TILE", "found / TILE"),
    (topk, "topk.cu", "where ? where[value] : value", "value"),
    # what a warp shares
    (exact, "adam.cu", "if (__all_sync(ALL_LANES, rest)) return i;", "if (rest) return i;"),
    (exact, "optim.cuh", "static const u32 ALL_LANES = 0xffffffffu;", "static const u32 ALL_LANES = 0x7fffffffu;"),
    (exact, "adam.cu", "    if (lane == 0) {", "    if (lane < 2) {"),
    # arithmetic
    (exact, "optim.cuh", "i > 0; i--) s = add", "i > 1; i--) s = add"),
]


@pytest.fixture(scope="module")
def expected():
    require(CUPY_HOST)
    return {work: work(sparsekit_scipy, np.array) for work in (coalesce, is_coalesced, topk, adam, exact)}


@contextlib.contextmanager
def mutated(file, old, new):
    """The backend on another stand-in, with this change in its sources, in random order."""
    from _cuda import host_device

    from sparsekit_cupy import _device, _topk

    original = _device.source
    changed = {}

    def source(name):
        if name not in changed:
            changed[name] = original(name).replace(old, new)
        return changed[name]

    assert old in original(file), "the mutant is out of date"
    few = _topk.SAMPLES, _topk._FEW
    device, before = host_device(order="random", seed=1, preempt=7), _device.find
    _device.source, _device.find = source, lambda: device
    _topk.SAMPLES, _topk._FEW = 256, 5000
    try:
        yield device.xp
    finally:
        _device.source, _device.find = original, before
        _topk.SAMPLES, _topk._FEW = few


def same(got, want):
    if isinstance(want, tuple | list):
        return got is not None and len(got) == len(want) and all(same(g, w) for g, w in zip(got, want, strict=True))
    got = got.get() if hasattr(got, "get") else got
    return np.asarray(got).tobytes() == np.asarray(want).tobytes()


def survives(expected, work, file, old, new):
    from _cuda import KernelError

    import sparsekit_cupy

    with mutated(file, old, new) as xp:
        try:
            return same(work(sparsekit_cupy, xp.asarray), expected[work])
        except KernelError:
            return False


@pytest.mark.parametrize("work", [coalesce, is_coalesced, topk, adam, exact])
def test_without_a_change_all_is_well(expected, work):
    import sparsekit_cupy

    with mutated("group.cu", "0", "0") as xp:
        assert same(work(sparsekit_cupy, xp.asarray), expected[work])


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_mutants_are_caught(expected, number):
    assert not survives(expected, *MUTANTS[number])


def test_a_change_that_changes_nothing_passes(expected):
    """The sum of two numbers has no order: it is results that are compared, not sources."""
    assert survives(expected, adam, "reduce.cuh", "Op::of(total.at[v], widen(x.at[v]))", "Op::of(widen(x.at[v]), total.at[v])")


PLAIN = Modes(1, 0.1, 1.0, False, "masked", "float32")


@pytest.mark.parametrize(
    ("file", "old", "modes"),
    [
        ("common.cuh", "#pragma once", None),
        ("common.cuh", "#pragma once", PLAIN),
        ("adam.cu", "const i64 at = row * width + c;", None),
        ("optim.cuh", "round(at + row * width + c, x", PLAIN),
        ("optim.cuh", "return real(at[row * width + c]", PLAIN),
    ],
)
def test_32_bit_offsets_are_caught(file, old, modes):
    """In a table of more than 2**31 elements. Pages that nobody touches take no memory."""
    require(CUPY_HOST)
    from _cuda import KernelError

    import sparsekit_cupy

    rows, width = 2**25 + 3, 64
    with mutated(file, old, old.replace("row * width + c", "(int)(row * width + c)")) as xp:
        try:
            tables = [xp.zeros((rows, width), np.float32) for _ in range(3)]
        except MemoryError:
            pytest.skip("this system gives no address space that memory does not stand behind")
        ids, values = xp.asarray(np.array([rows - 1, 2**25])), xp.asarray(np.ones((2, width), np.float32))
        try:
            sparsekit_cupy.sparse_adam_step(*tables, ids, values, dtype="float32", **ADAM, modes=modes)
            fine = all(bool((t[row] != 0).all()) for t in tables for row in (rows - 1, 2**25))
        except KernelError:
            fine = False
    assert fine == ("row * width" not in old)
