"""What only the Numba backend has: 16-bit conversions, the kernel cache, the thread pool."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("numba")

import sparsekit
from sparsekit_numba import _pool, _scalars


@pytest.fixture(autouse=True)
def thread_count_put_back():
    before = _pool.num_threads()
    yield
    _pool.set_num_threads(before)


def test_every_float16_and_bfloat16_widens_exactly():
    bits = np.arange(1 << 16, dtype=np.uint16)
    half = np.array([_scalars.half_to_float(b) for b in bits], np.float32)
    expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(half, expected)
    np.testing.assert_array_equal(np.signbit(half), np.signbit(expected))
    brain = np.array([_scalars.bfloat_to_float(b) for b in bits], np.float32)
    np.testing.assert_array_equal(brain, (bits.astype(np.uint32) << 16).view(np.float32))


def _float32_near_rounding_boundaries(storage):
    """Every 16-bit float, the midpoints between neighbours, and the float32 on each side of both."""
    finite = np.sort(storage.astype(np.float32)[np.isfinite(storage.astype(np.float32))])
    middle = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    exact = np.concatenate([finite, middle.astype(np.float32)])
    around = [np.nextafter(exact, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([exact, *around, np.float32([np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 65519.99, 65520.0])])


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_rounding_to_16_bits_is_to_nearest_even(name):
    bits = np.arange(1 << 16, dtype=np.uint16)
    dtype = np.dtype(np.float16) if name == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    narrow = _scalars.float_to_half if name == "float16" else _scalars.float_to_bfloat
    x = _float32_near_rounding_boundaries(bits.view(dtype))[::7]
    got = np.array([narrow(value) for value in x], np.uint16).view(dtype)
    expected = x.astype(dtype)
    is_nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~is_nan], expected.view(np.uint16)[~is_nan])


COALESCE = """
import numpy as np, sparsekit
print(sparsekit.coalesce(np.array([1, 1]), np.array([2.0, 3.0]), (3,), backend="numba").values[0])
"""

NO_FOLDER = """
import numba.core.caching
numba.core.caching.CacheImpl._locator_classes = []
"""

FULL_DISK = """
import errno, numba.core.caching
def save(*args): raise OSError(errno.ENOSPC, "no space left")
numba.core.caching.IndexDataCacheFile.save = save
numba.core.caching.IndexDataCacheFile.load = lambda *args: None
"""


@pytest.mark.parametrize("trouble", [NO_FOLDER, FULL_DISK], ids=["no folder can be written", "disk full"])
def test_works_where_the_kernel_cache_cannot_be_written(trouble, run_python):
    assert run_python(trouble + COALESCE, timeout=180).strip() == "5.0"


def test_pool_returns_results_in_order_and_runs_the_first_task_here():
    _pool.set_num_threads(3)
    here = threading.get_ident()
    results = _pool.run([lambda i=i: (i, threading.get_ident()) for i in range(8)])
    assert [i for i, _ in results] == list(range(8))
    assert results[0][1] == here
    assert {thread for _, thread in results[1:]} - {here}


def test_pool_waits_for_all_tasks_before_it_raises():
    _pool.set_num_threads(3)
    finished = []

    def fail():
        raise ValueError("first")

    def slow():
        time.sleep(0.2)
        finished.append(True)

    with pytest.raises(ValueError, match="first"):
        _pool.run([fail, slow, slow])
    assert finished == [True, True]


def test_pool_can_be_used_from_its_own_workers():
    _pool.set_num_threads(2)
    inner = [lambda: 1, lambda: 2, lambda: 3]
    assert _pool.run([lambda: _pool.run(inner)] * 4) == [[1, 2, 3]] * 4


def test_pool_may_be_resized_while_others_use_it():
    stop = threading.Event()
    wrong = []

    def use():
        while not stop.is_set():
            if _pool.run([lambda i=i: i for i in range(5)]) != [0, 1, 2, 3, 4]:
                wrong.append(True)

    users = [threading.Thread(target=use) for _ in range(3)]
    for user in users:
        user.start()
    for n in (1, 2, 5, 3) * 10:
        _pool.set_num_threads(n)
        time.sleep(0.005)
    stop.set()
    for user in users:
        user.join(10)
    assert not wrong
    assert not any(user.is_alive() for user in users)


@pytest.mark.parametrize(("n", "at_least"), [(0, 10), (1, 10), (9, 10), (100, 1), (7, 3)])
def test_ranges_cover_everything_once(n, at_least):
    _pool.set_num_threads(4)
    ranges = _pool.ranges(n, at_least)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(n))
    assert len(ranges) <= 4


@pytest.mark.parametrize("sorted_from", [0, 50_000, None])
@pytest.mark.parametrize("dims", [(300, 300), (2**20, 2**20), (2**31, 2**31), (2**62, 300)])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_one_thread_may_see_sorted_indices_and_the_other_not(threads, sorted_from, dims, itemsize):
    """Each counts keys only where they are out of order; and keys by the shape may be far wider than the indices need."""
    threads(2)
    nnz = 100_000
    rng = np.random.default_rng(0)
    flat = rng.integers(0, 90_000, nnz)
    if sorted_from is not None:
        half = slice(sorted_from, sorted_from + nnz // 2)
        flat[half] = np.sort(flat[half])
    values = rng.integers(-100, 100, nnz).astype(f"f{itemsize}")
    coo, inverse = sparsekit.coalesce(np.stack(np.divmod(flat, 300)), values, dims, return_inverse=True, backend="numba")
    unique, places = np.unique(flat, return_inverse=True)
    np.testing.assert_array_equal(coo.indices, np.stack(np.divmod(unique, 300)))
    np.testing.assert_array_equal(coo.values, np.bincount(places, values))
    np.testing.assert_array_equal(inverse, places)
    alone = sparsekit.coalesce(np.stack(np.divmod(flat, 300)), values, dims, backend="numba")
    np.testing.assert_array_equal(alone.indices, coo.indices)
    np.testing.assert_array_equal(alone.values, coo.values)
