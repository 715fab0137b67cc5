"""The CUDA backend's driver code: device arrays through the public functions, what waits, what is left alone, what the order
of blocks may change (nothing). On the stand-in for a device."""

import contextlib

import numpy as np
import pytest
from _cases import numbers
from conftest import CUPY_HOST, require

import sparsekit
from sparsekit import _dlpack, _registry
from sparsekit._protocol import Modes


@pytest.fixture
def put(monkeypatch):
    """The stand-in for a device, whose arrays the public functions then take as they take CuPy's."""
    require(CUPY_HOST)
    import _cuda

    import sparsekit_cupy
    from sparsekit_cupy import _device

    device = _cuda.host_device()
    monkeypatch.setattr(_device, "find", lambda: device)
    monkeypatch.setitem(_dlpack._SPECIAL_ADAPTERS, "_cuda", "sparsekit._cupy")
    monkeypatch.setitem(_registry._loaded, "cupy", sparsekit_cupy)
    _dlpack._special.cache_clear()
    yield device
    _dlpack._special.cache_clear()


@pytest.fixture
def sampled(put, monkeypatch):
    """Arrays of the tests' size are sampled; the list tells for each topk where it selected from."""
    from sparsekit_cupy import _topk

    chosen, plan = [], _topk._plan

    def spy(device, *args):
        plan(device, *args)
        *_, active, _state = args
        chosen.append("candidates" if active.get()[0] else "arrays")

    monkeypatch.setattr(_topk, "SAMPLES", 256)
    monkeypatch.setattr(_topk, "_FEW", 2000)
    monkeypatch.setattr(_topk, "_plan", spy)
    return chosen


@contextlib.contextmanager
def waits(device, times):
    before = device.xp.syncs
    yield
    assert device.xp.syncs - before == times


def triplet(n=3000, width=3):
    rng = np.random.default_rng(0)
    return rng.integers(0, 40, (2, n)), numbers(rng, (n, width), "float32"), (40, 50, width)


def tables(count=3, rows=50, width=8, dtype="float32"):
    rng = np.random.default_rng(1)
    return [np.abs(numbers(rng, (rows, width), dtype)) for _ in range(count)]


def gradient(n=200, rows=50, width=8):
    rng = np.random.default_rng(2)
    return rng.integers(0, rows, n), numbers(rng, (n, width), "float32")


def to_host(x):
    if isinstance(x, sparsekit.COO):
        x = x.indices, x.values, np.array(x.shape)
    if isinstance(x, tuple | list):
        return [to_host(part) for part in x]
    return x.get() if hasattr(x, "get") else x


def same(got, want):
    if isinstance(want, tuple | list):
        return len(got) == len(want) and all(map(same, got, want))
    return np.asarray(got).dtype == np.asarray(want).dtype and np.asarray(got).tobytes() == np.asarray(want).tobytes()


def arrays_of(device, given):
    return [device.xp.asarray(a) if isinstance(a, np.ndarray) else a for a in given]


# name: (how often the host waits, arguments, call)
FUNCTIONS = {
    "coalesce": (1, triplet(), sparsekit.coalesce),
    "coalesce, inverse and counts": (1, triplet(), lambda *a: sparsekit.coalesce(*a, return_inverse=True, return_counts=True)),
    "coalesce, unchecked": (1, triplet(), lambda *a: sparsekit.coalesce(*a, check=False)),
    "coalesce of nothing": (0, triplet(0), sparsekit.coalesce),
    "is_coalesced": (1, triplet()[:1], sparsekit.is_coalesced),
    "topk": (0, [numbers(np.random.default_rng(3), (50, 70), "float32")], lambda x: sparsekit.topk(x, 99)),
    "topk of a list": (1, tables(), lambda *x: sparsekit.topk(list(x), 99)),
    "topk_mask": (0, tables(1), lambda x: sparsekit.topk_mask(x, 99)),
    "topk_mask of a list": (1, tables(), lambda *x: sparsekit.topk_mask(list(x), 99)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_device_arrays(put, name):
    times, given, call = FUNCTIONS[name]
    there = arrays_of(put, given)
    with waits(put, times):
        got = call(*there)
    assert same(to_host(got), to_host(call(*given)))
    for part in got if isinstance(got, tuple | list) else [got]:
        for x in (part.indices, part.values) if isinstance(part, sparsekit.COO) else [part]:
            assert isinstance(x, bool if name == "is_coalesced" else put.xp.ndarray)


def test_sums_of_two_and_dense(put):
    given = triplet()
    a, b = sparsekit.coalesce(*arrays_of(put, given)), sparsekit.coalesce(*given)
    assert same(to_host(sparsekit.add(a, a)), to_host(sparsekit.add(b, b)))
    assert same(to_host(a.to_dense()), b.to_dense())


STEPS = {
    "adam": (sparsekit.sparse_adam_step, 3, {}),
    "adam, decoupled": (sparsekit.sparse_adam_step, 3, {"weight_decay": 0.1, "weight_decay_mode": "decoupled"}),
    "adagrad": (sparsekit.sparse_adagrad_step, 2, {}),
    "sgd": (sparsekit.sparse_sgd_step, 1, {}),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("check", [True, False])
def test_steps_take_device_arrays(put, name, check):
    """Only a look at the indices waits."""
    step, count, options = STEPS[name]
    here, (rows, values) = tables(count), gradient()
    there = arrays_of(put, here)
    addresses = [t.data.ptr for t in there]
    with waits(put, int(check)):
        step(*there, put.xp.asarray(rows), put.xp.asarray(values), step=3, lr=0.1, check=check, **options)
    step(*here, rows, values, step=3, lr=0.1, **options)
    assert same(to_host(there), here)
    assert addresses == [t.data.ptr for t in there]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("row", [-1, 50, 2**40])
def test_a_bad_row_writes_nothing(put, name, check, row):
    step, count, options = STEPS[name]
    here, (rows, values) = tables(count), gradient()
    rows[100] = row
    there = arrays_of(put, here)
    call = [*there, put.xp.asarray(rows), put.xp.asarray(values)]
    with pytest.raises(IndexError, match="50") if check else contextlib.nullcontext():
        step(*call, step=3, lr=0.1, check=check, **options)
    assert same(to_host(there), here)


@pytest.mark.parametrize("row", [-1, 40, 2**60])
def test_bad_indices_are_an_error(put, row):
    indices, values, shape = triplet()
    indices[0, 77] = row
    with pytest.raises(IndexError, match="40"):
        sparsekit.coalesce(put.xp.asarray(indices), put.xp.asarray(values), shape)


def test_results_are_on_the_arrays_device(put):
    """Which need not be the current one."""
    indices, values, shape = triplet()
    with put.xp.Device(1):
        there = put.xp.asarray(indices), put.xp.asarray(values)
    got = sparsekit.coalesce(*there, shape)
    assert got.values.device == got.indices.device == put.xp.Device(1)
    assert sparsekit.topk(there[1], 5).values.device == put.xp.Device(1)
    assert put.xp.current_device == 0


def test_a_steps_memory_does_not_grow_with_the_table(put):
    """What a step allocates, for tables of 25 MB each."""
    rows, values = gradient(100, 100_000, 64)
    there = [put.xp.zeros((100_000, 64), np.float32) for _ in range(3)]
    rows, values = put.xp.asarray(rows), put.xp.asarray(values)
    import tracemalloc

    sparsekit.sparse_adam_step(*there, rows, values, step=1, lr=0.1)
    tracemalloc.start()
    sparsekit.sparse_adam_step(*there, rows, values, step=2, lr=0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_topk_copies_no_array(put, sampled):
    """waveglow#92: flattening all gradients doubled the memory."""
    import tracemalloc

    there = arrays_of(put, [numbers(np.random.default_rng(i), 100_000, "float32") for i in range(4)])
    sparsekit.topk(there, 100)
    tracemalloc.start()
    sparsekit.topk(there, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_600_000 / 2


def _plateaus(rng, n):
    return rng.integers(0, 3, n).astype(np.float32)


def _hidden(rng, n):
    """Large values at the positions that the sample looks at, and nowhere else."""
    z = (np.arange(1, 257, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    x = rng.random(n).astype(np.float32)
    x[((z ^ z >> np.uint64(31)) % np.uint64(n)).astype(np.int64)] += 5
    return x


@pytest.mark.parametrize("cut", [[], [1], [2048], [3000, 3000, 9000]])
@pytest.mark.parametrize(
    ("values", "k", "source"),
    [
        (lambda rng, n: rng.standard_normal(n), 1, "candidates"),
        (lambda rng, n: rng.standard_normal(n).astype(np.float32), 150, "candidates"),
        (lambda rng, n: (rng.standard_normal(n) * 1000).astype(np.int32), 150, "candidates"),
        (lambda rng, n: np.sort(rng.standard_normal(n).astype(np.float16)), 300, "candidates"),
        (lambda rng, n: rng.standard_normal(n).astype(np.float32), 5000, "arrays"),  # too many
        (_plateaus, 150, "arrays"),  # more candidates than there is room for
        (_hidden, 400, "arrays"),  # fewer candidates than k
    ],
)
def test_topk_from_candidates_or_from_the_arrays(put, sampled, values, k, source, cut):
    import sparsekit_scipy

    x = values(np.random.default_rng(9), 10_000)
    parts, dtype = np.split(x, cut), x.dtype.name
    got = to_host(sparsekit_cupy_topk(arrays_of(put, parts), k, dtype))
    assert same(got, sparsekit_scipy.topk(parts, k, dtype=dtype))
    assert sampled == [source]


def sparsekit_cupy_topk(arrays, k, dtype):
    import sparsekit_cupy

    return sparsekit_cupy.topk(arrays, k, dtype=dtype)


@pytest.mark.parametrize(("dtype", "passes"), [("int8", 1), ("float16", 2), ("float32", 3), ("float64", 6)])
def test_topk_reads_as_often_as_it_says(put, sampled, dtype, passes):
    """A small array once for each digit of 11 bits, then to count and to write; a large one to count and to collect."""
    c_type = {"int8": "signed char", "float16": "Half", "float32": "float", "float64": "double"}[dtype]
    select = {"histogram": passes, "count_topk": 1, "write_topk": 1}
    for n, reads in ((1000, select), (5000, {"sample": 1} | select | {"count_topk": 2, "write_topk": 2})):
        put.launches.clear()
        sparsekit.topk(put.xp.asarray(numbers(np.random.default_rng(0), n, dtype)), 10)
        assert reads == {
            name.removeprefix("sparsekit_").split("<")[0]: times for name, times in put.launches.items() if f"<{c_type}>" in name
        }


# The order in which blocks and threads run.
def _coalesce(backend, xp, reduce):
    rng = np.random.default_rng(5)
    rows = np.concatenate([np.zeros(2100, np.int64), rng.integers(0, 300, 3000)])
    more = {"dtype": "float32", "reduce": reduce, "return_inverse": True, "return_counts": True, "check": True}
    return backend.coalesce(xp.asarray(rows[None]), xp.asarray(numbers(rng, (5100, 5), "float32")), (300,), **more)


def _coalesce_wide(backend, xp):
    """Coordinates of more bits than a word has."""
    rng = np.random.default_rng(6)
    more = {"dtype": "int64", "reduce": "sum", "return_inverse": True, "return_counts": False, "check": True}
    indices = np.concatenate([rng.integers(0, 3, (3, 800)) << 38, rng.integers(0, 2, (1, 800))])
    return backend.coalesce(xp.asarray(indices), xp.asarray(rng.integers(0, 9, (800, 1))), (2**40, 2**40, 2**40, 2), **more)


def _topk(backend, xp):
    x = numbers(np.random.default_rng(7), 6000, "float32")
    x[::2] = 1.5
    return backend.topk([xp.asarray(x[:2500]), xp.asarray(x[2500:])], 2000, dtype="float32")


def _steps(backend, xp):
    rng = np.random.default_rng(8)
    rows = xp.asarray(np.concatenate([np.full(1500, 3), rng.integers(0, 40, 300)]))
    values = xp.asarray(numbers(rng, (1800, 36), "float32"))
    steps = np.arange(1, 31)
    history = xp.asarray(np.stack([0.1 / steps, -0.001 * steps, np.full(30, 0.1)], axis=1))
    common = {"dtype": "float32", "weight_decay": 0.01, "maximize": False, "check": True}
    touched = []
    for moments in ("masked", "exact"):
        p, m, v, b = (xp.asarray(t) for t in tables(4, 40, 36))
        row_sum = xp.asarray(tables(1, 40, 1)[0])
        last = [xp.asarray(np.arange(40) % 29) for _ in range(3)]
        modes = [Modes(30, 0.1, 0.99, True, moments, "float32", last_step=a, history=history) for a in last]
        rates = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        assert backend.sparse_adam_step(p, m, v, rows, values, step_size=0.1, modes=modes[0], **rates, **common)
        assert backend.sparse_sgd_step(p, b, rows, values, momentum=0.9, dampening=0.1, nesterov=True, modes=modes[1], **common)
        rowwise = modes[2]._replace(moments="masked", rowwise=True)
        assert backend.sparse_adagrad_step(p, row_sum, rows, values, eps=1e-8, modes=rowwise, **common)
        backend.sparse_adam_flush(p, m, v, dtype="float32", modes=modes[0], **rates)
        backend.sparse_sgd_flush(p, b, dtype="float32", momentum=0.9, nesterov=True, modes=modes[1])
        backend.sparse_adagrad_flush(p, dtype="float32", modes=rowwise)
        touched += [p, m, v, b, row_sum, *last]
    return touched


WORK = {
    "sum": lambda backend, xp: _coalesce(backend, xp, "sum"),
    "max": lambda backend, xp: _coalesce(backend, xp, "max"),
    "wide": _coalesce_wide,
    "topk": _topk,
    "steps": _steps,
}


@pytest.mark.parametrize("work", WORK)
def test_no_order_of_blocks_and_threads_changes_a_bit(put, work, monkeypatch):
    import _cuda

    import sparsekit_cupy
    import sparsekit_scipy
    from sparsekit_cupy import _device

    want = to_host(WORK[work](sparsekit_scipy, np))
    for multiprocessors in (1, 3):
        for order, seed, preempt in (("forward", 0, 0), ("reverse", 0, 0), ("random", 1, 0), ("random", 2, 5)):
            device = _cuda.host_device(multiprocessors=multiprocessors, order=order, seed=seed, preempt=preempt)
            monkeypatch.setattr(_device, "find", lambda device=device: device)
            assert same(to_host(WORK[work](sparsekit_cupy, device.xp)), want), (multiprocessors, order, seed)


def test_grids_stay_within_limits(put):
    assert put.blocks(10**15) == 8 and put.blocks(0) == put.blocks(1) == 1


def test_kernels_are_compiled_once(put):
    x = put.xp.asarray(np.ones(5, np.float32))
    sparsekit.topk(x, 2)
    before = dict(put._kernels)
    sparsekit.topk(x, 3)
    assert put._kernels == before and all(put._kernels[key] is before[key] for key in before)


def test_too_many_entries_for_wide_coordinates(put):
    from sparsekit_cupy import _group

    class Indices:
        shape = (2, 2**33)

    with pytest.raises(NotImplementedError, match=r"2\*\*32"):
        _group._rank(put, Indices(), (2**40, 2**40), [40, 40], 33, None)


def test_the_device_is_cupys_current_one(monkeypatch):
    """The way in that production takes, up to where a driver is asked."""
    cupy = pytest.importorskip("cupy")
    from sparsekit_cupy import _device

    class Now:
        def __init__(self, number):
            self.attributes = {"MultiProcessorCount": 7 + number}

    asked = []
    monkeypatch.setattr(_device, "find", _device._find_cuda)
    monkeypatch.setattr(cupy.cuda, "is_available", lambda: False)
    assert "no CUDA device" in _device.missing()
    monkeypatch.setattr(cupy.cuda, "is_available", lambda: True)
    assert _device.missing() is None
    monkeypatch.setattr(cupy.cuda, "Device", Now)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 1)
    monkeypatch.setattr(cupy, "RawModule", lambda **options: asked.append(options) or options)
    _device._cuda.cache_clear()
    try:
        device = _device.current()
        assert device.xp is cupy and device.multiprocessors == 8 and device is _device.current()
        device._module("text", "file.cu", ("name",))
    finally:
        _device._cuda.cache_clear()
    assert asked == [{"code": "text", "options": ("--std=c++17",), "name_expressions": ("name",)}]


def test_nothing_to_warm_up():
    import sparsekit_cupy

    assert sparsekit_cupy.warmup() is None and sparsekit_cupy.set_num_threads(3) is None
