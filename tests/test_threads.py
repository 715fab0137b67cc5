"""The same bits for any number of threads; many callers at once; use after fork; use inside a caller's own pool."""

import concurrent.futures
import threading

import _cases
import numpy as np
import pytest
from _tolerance import assert_bits

import sparsekit


def coalesce_call(dtype, distribution, dense=(), reduce="sum", nnz=400_000, dims=(2000, 500)):
    case = _cases.case(1, dims, dense, nnz // max(1, *dense, 1), dtype, distribution)

    def call(backend):
        coo, inverse, counts = sparsekit.coalesce(*case, reduce=reduce, return_inverse=True, return_counts=True, backend=backend)
        plain = sparsekit.coalesce(*case, reduce=reduce, backend=backend)  # may go another way
        return [coo.indices, coo.values, inverse, counts, plain.indices, plain.values]

    return call


def topk_call(dtype, ties=False, k=5000, n=1_500_000):
    x = _cases.numbers(np.random.default_rng(2), n, dtype)
    x = (x % 3).astype(x.dtype) if ties and x.dtype.kind in "iu" else np.sign(x).astype(x.dtype) if ties else x
    parts = [x[: n // 7], x[n // 7 :]]

    def call(backend):
        first = sparsekit.topk(x, k, backend=backend)
        coos = sparsekit.topk(parts, k, sorted=True, backend=backend)
        return [first.indices, first.values, *(coo.indices for coo in coos), sparsekit.topk_mask(x, k, backend=backend)]

    return call


def adam_call(dtype, distribution, rows=60_000, table=20_000, width=8):
    rng = np.random.default_rng(3)
    indices = _cases.coordinates(rng, (table,), rows, distribution)
    values = _cases.numbers(rng, (rows, width), dtype)
    state = np.float64 if dtype == "float64" else np.float32

    def call(backend):
        arrays = [np.zeros((table, width), dtype), np.zeros((table, width), state), np.zeros((table, width), state)]
        sparsekit.sparse_adam_step(*arrays, indices, values, step=5, lr=0.1, weight_decay=0.1, backend=backend)
        return arrays

    return call


CALLS = {
    "coalesce uniform": lambda: coalesce_call("float32", "uniform"),
    "coalesce Zipf": lambda: coalesce_call("float64", "zipf"),
    "coalesce hot index": lambda: coalesce_call("float32", "all-equal"),
    "coalesce hot index float16": lambda: coalesce_call("float16", "all-equal"),
    "coalesce sorted rows": lambda: coalesce_call("float32", "sorted", (16,), nnz=800_000),
    "coalesce hot rows": lambda: coalesce_call("bfloat16", "all-equal", (16,), nnz=800_000),
    "coalesce mean": lambda: coalesce_call("float32", "zipf", reduce="mean"),
    "coalesce prod": lambda: coalesce_call("complex64", "zipf", reduce="prod"),
    "coalesce integers": lambda: coalesce_call("int64", "zipf"),
    "coalesce huge shape": lambda: coalesce_call("float32", "zipf", dims=(2**62, 2**62, 2**62), nnz=200_000),
    "topk float32": lambda: topk_call("float32"),
    "topk float16": lambda: topk_call("float16"),
    "topk all ties": lambda: topk_call("float32", ties=True),
    "topk integers": lambda: topk_call("int64", ties=True),
    "adam uniform": lambda: adam_call("float32", "uniform"),
    "adam Zipf": lambda: adam_call("float64", "zipf"),
    "adam hot row": lambda: adam_call("float32", "all-equal"),
    "adam float16": lambda: adam_call("float16", "zipf"),
}


@pytest.mark.parametrize("name", CALLS)
def test_same_bits_for_1_2_and_7_threads(threads, cpu_backend, name):
    call = CALLS[name]()
    threads(1)
    expected = call(cpu_backend)
    for n in (2, 7, 2) if cpu_backend != "scipy" else (7,):  # scipy's runs on one thread whatever is asked
        threads(n)
        for got, want in zip(call(cpu_backend), expected, strict=True):
            assert_bits(got, want)


def some_calls():
    return [
        coalesce_call("float32", "zipf", nnz=100_000),
        coalesce_call("float64", "all-equal", (4,), nnz=100_000),
        topk_call("float32", n=300_000),
        adam_call("float32", "zipf", rows=20_000, table=5_000),
    ]


def test_8_callers_at_once(threads, cpu_backend):
    threads(3)
    calls = some_calls()
    expected = [call(cpu_backend) for call in calls]
    barrier = threading.Barrier(8, timeout=30)

    def work(i):
        barrier.wait()
        for turn in range(4):
            which = (i + turn) % len(calls)
            for got, want in zip(calls[which](cpu_backend), expected[which], strict=True):
                assert_bits(got, want)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8), timeout=60))


@pytest.mark.parametrize("kind", ["pairs", "hot", "sorted", "huge", "topk", "adam"])
def test_the_number_of_threads_may_change_during_a_call(threads, cpu_backend, kind):
    """Work that was cut for one number of threads must not be put together for another, nor a pool closed under its users."""
    call = {
        "pairs": lambda: coalesce_call("float32", "uniform", nnz=70_000),
        "hot": lambda: coalesce_call("float32", "all-equal", nnz=70_000),
        "sorted": lambda: coalesce_call("float64", "sorted", (2,), nnz=140_000),
        "huge": lambda: coalesce_call("float32", "uniform", nnz=70_000, dims=(2**62, 2**62, 2**62)),
        "topk": lambda: topk_call("float32", n=200_000),
        "adam": lambda: adam_call("float32", "uniform", rows=20_000, table=5_000),
    }[kind]()
    expected, stop = call(cpu_backend), threading.Event()

    def change():
        while not stop.is_set():
            for n in (1, 2, 7, 3):
                threads(n)
                stop.wait(0.0003)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(40 if cpu_backend != "scipy" else 3):
            for got, want in zip(call(cpu_backend), expected, strict=True):
                assert_bits(got, want)
    finally:
        stop.set()
        changer.join()


def test_inside_a_callers_own_pool(threads, cpu_backend):
    """Tasks that wait for each other and call us, in a pool as small as ours: no deadlock."""
    threads(2)
    calls = some_calls()
    expected = [call(cpu_backend) for call in calls]
    with concurrent.futures.ThreadPoolExecutor(2) as outer, concurrent.futures.ThreadPoolExecutor(2) as inner:

        def nested(which):
            return inner.submit(calls[which], cpu_backend).result(timeout=60), calls[which](cpu_backend)

        for which, pair in enumerate(outer.map(nested, range(len(calls)), timeout=60)):
            for result in pair:
                for got, want in zip(result, expected[which], strict=True):
                    assert_bits(got, want)


FORK = """
import os, signal, sys, threading
import numpy as np, sparsekit

backend, busy = sys.argv[1], sys.argv[2] == "busy"
sparsekit.set_num_threads(3)
rng = np.random.default_rng(0)
index, values = rng.integers(0, 5000, 200_000), rng.standard_normal(200_000).astype(np.float32)
x = rng.standard_normal(500_000).astype(np.float32)

def work():
    coo = sparsekit.coalesce(index, values, (5000,), backend=backend)
    top = sparsekit.topk(x, 100, backend=backend)
    table = [np.zeros((5000, 4), np.float32) for _ in range(3)]
    sparsekit.sparse_adam_step(*table, index[:50_000], values.reshape(-1, 4), step=1, backend=backend)
    return [coo.values.tobytes(), top.indices.tobytes(), *(t.tobytes() for t in table)]

expected = work()
stop = False
def hammer():
    while not stop:
        work()
others = [threading.Thread(target=hammer, daemon=True) for _ in range(2 if busy else 0)]  # they hold locks when the fork comes
for other in others:
    other.start()

def fork(depth):
    pid = os.fork()
    if not pid:
        signal.alarm(30)  # ends a child that hangs
        status = 1
        try:
            same = work() == expected
            sparsekit.set_num_threads(2)
            same &= work() == expected
            status = 0 if same and (depth == 0 or fork(depth - 1) == 0) else 2
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]

for i in range(4 if busy else 1):
    status = fork(0 if busy else 1)  # the second: a child of the child
    assert status == 0, f"hangs or dies: {status}" if status & 127 else status
assert work() == expected  # the parent goes on
stop = True
for other in others:
    other.join()
"""


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_use_fork_use_in_the_child(cpu_backend, when, run_python):
    run_python(FORK, cpu_backend, when)


def test_process_ends_while_in_use(cpu_backend, run_python):
    """Calls at exit and in a daemon thread neither hang nor crash the process."""
    run_python(
        """
import atexit, sys, threading
import numpy as np, sparsekit

index = np.random.default_rng(0).integers(0, 50, 100_000)
call = lambda: sparsekit.coalesce(index, np.ones(100_000), (50,), backend=sys.argv[1])
call()
atexit.register(call)
def forever():
    while True:
        call()
threading.Thread(target=forever, daemon=True).start()
""",
        cpu_backend,
        timeout=60,
    )
