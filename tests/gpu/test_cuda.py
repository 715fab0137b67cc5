"""What only a real CUDA device can show: streams, waiting, memory, torch's CUDA tensors, sizes. Run by bench/gpu_check.sh."""

import numpy as np
import pytest
from _cases import numbers

import sparsekit

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def slow_kernel():
    """Queues work of about a second on the current stream."""
    code = """extern "C" __global__ void spin(long long cycles) {
      const long long start = clock64();
      while (clock64() - start < cycles) {}
    }"""
    kernel = cupy.RawKernel(code, "spin")
    return lambda: kernel((1,), (1,), (np.int64(1_500_000_000),))


def triplet(n=50_000, dims=(300, 200), width=4, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, d, n) for d in dims]), rng.standard_normal((n, width)).astype(np.float32), (*dims, width)


def adam_tables(rows, width):
    rng = np.random.default_rng(3)
    return [rng.random((rows, width), np.float32) for _ in range(3)]


def test_same_bits_as_the_cpu():
    indices, values, shape = triplet()
    want, inverse = sparsekit.coalesce(indices, values, shape, return_inverse=True)
    got, there = sparsekit.coalesce(cupy.asarray(indices), cupy.asarray(values), shape, return_inverse=True)
    assert isinstance(got.values, cupy.ndarray)
    assert np.array_equal(got.indices.get(), want.indices)
    assert got.values.get().tobytes() == want.values.tobytes()
    assert np.array_equal(there.get(), inverse)


def test_twenty_runs_give_the_same_bits():
    indices, values, shape = (cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in triplet(200_000, (3, 7)))
    runs = {sparsekit.coalesce(indices, values, shape).values.get().tobytes() for _ in range(20)}
    assert len(runs) == 1


@pytest.mark.parametrize("non_blocking", [False, True])
def test_side_streams(slow_kernel, non_blocking):
    """Work queued before on the same stream is seen, whatever other streams do."""
    indices, values, shape = triplet()
    want = sparsekit.coalesce(indices, 2 * values, shape)
    there = cupy.asarray(indices), cupy.asarray(values)
    cupy.cuda.runtime.deviceSynchronize()
    with cupy.cuda.Stream(non_blocking=non_blocking) as stream:
        slow_kernel()
        doubled = there[1] * 2
        got = sparsekit.coalesce(there[0], doubled, shape)
        chosen = sparsekit.topk(doubled.reshape(-1), 100)
        stream.synchronize()
        assert got.values.get().tobytes() == want.values.tobytes()
        assert np.array_equal(chosen.values.get(), sparsekit.topk(2 * values.reshape(-1), 100).values)


def test_topk_and_unchecked_steps_wait_for_nothing(slow_kernel):
    x = cupy.asarray(np.random.default_rng(1).standard_normal(300_000).astype(np.float32))
    tables = [cupy.asarray(t) for t in adam_tables(1000, 8)]
    ids, values = cupy.arange(500, dtype=cupy.int64), cupy.ones((500, 8), cupy.float32)

    def work():
        sparsekit.topk(x, 1000)
        sparsekit.topk_mask(x, 1000)
        sparsekit.sparse_adam_step(*tables, ids, values, step=1, lr=0.1, check=False)

    work()  # compiles
    cupy.cuda.runtime.deviceSynchronize()
    slow_kernel()
    work()
    done = cupy.cuda.Event()
    done.record()
    assert not done.done
    done.synchronize()


def test_memory_goes_back_to_the_pool():
    pool = cupy.get_default_memory_pool()
    indices, values, shape = (cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in triplet())
    sparsekit.coalesce(indices, values, shape)
    before = pool.used_bytes()
    sparsekit.coalesce(indices, values, shape)
    sparsekit.topk(values, 10)
    assert pool.used_bytes() == before


def test_arrays_of_another_device_than_the_current_one():
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    indices, values, shape = triplet()
    with cupy.cuda.Device(1):
        there = cupy.asarray(indices), cupy.asarray(values)
    got = sparsekit.coalesce(*there, shape)
    assert got.values.device.id == 1
    assert got.values.get().tobytes() == sparsekit.coalesce(indices, values, shape).values.tobytes()


def test_more_than_two_to_the_31_elements():
    n = 2**31 + 1000
    x = cupy.zeros(n, cupy.int8)
    x[5], x[n - 3], x[n - 1] = 3, -128, 7
    got = sparsekit.topk(x, 4)
    assert got.indices.get().tolist() == [[0, 5, n - 3, n - 1]]
    assert got.values.get().tolist() == [0, 3, -128, 7]


def test_more_than_two_to_the_31_values():
    n, width = 2**24 + 5, 130
    values = cupy.ones((n, width), cupy.float16)
    rows = cupy.arange(n, dtype=cupy.int64) // 2
    got = sparsekit.coalesce(rows, values, (n, width))
    assert got.nnz == n // 2 + 1
    assert bool((got.values[:-1] == 2).all()) and bool((got.values[-1] == 1).all())


@pytest.fixture
def cuda(torch):
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    return torch


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "complex64"])
def test_torch_tensors(cuda, dtype):
    rng = np.random.default_rng(2)
    indices = cuda.from_numpy(rng.integers(0, 50, (2, 3000)))
    values = cuda.from_numpy(numbers(rng, (3000, 3), "float32")).to(getattr(cuda, dtype))
    want = sparsekit.coalesce(indices, values, (50, 50, 3))
    got = sparsekit.coalesce(indices.cuda(), values.cuda(), (50, 50, 3))
    assert got.values.is_cuda and got.values.dtype == values.dtype
    assert cuda.equal(got.indices.cpu(), want.indices)
    assert cuda.equal(got.values.cpu(), want.values)
    if not dtype.startswith("complex"):
        assert cuda.equal(sparsekit.topk_mask(values.cuda(), 77).cpu(), sparsekit.topk_mask(values, 77))


@pytest.mark.parametrize("name", ["SparseAdam", "SparseAdagrad", "SparseSGD", "Adam"])
def test_torch_optimizers(cuda, name):
    """Same bits as on the CPU, in the memory that the parameter has."""
    import sparsekit.torch

    def train(device):
        cuda.manual_seed(0)
        table = cuda.nn.Embedding(200, 8, sparse=True).to(device)
        optimizer = getattr(sparsekit.torch, name)(table.parameters(), lr=0.1)
        address = table.weight.data_ptr()
        ids = cuda.from_numpy(np.random.default_rng(4).integers(0, 200, (5, 300)))
        gradients = cuda.from_numpy(np.random.default_rng(5).standard_normal((5, 300, 8)).astype(np.float32))
        for some, g in zip(ids, gradients, strict=True):
            table.weight.grad = cuda.sparse_coo_tensor(some[None], g, (200, 8)).to(device)
            optimizer.step()
        assert table.weight.data_ptr() == address
        return table.weight.detach().cpu()

    assert cuda.equal(train("cuda"), train("cpu"))


def test_torch_side_stream(cuda):
    values = cuda.randn(100_000, device="cuda")
    want = sparsekit.topk(values.cpu() * 3, 50)
    cuda.cuda.synchronize()
    with cuda.cuda.stream(cuda.cuda.Stream()):
        cuda.cuda._sleep(500_000_000)
        got = sparsekit.topk(values * 3, 50)
        cuda.cuda.current_stream().synchronize()
        assert cuda.equal(got.values.cpu(), want.values)


def test_bad_rows_write_nothing():
    tables = [cupy.asarray(t) for t in adam_tables(10, 4)]
    before = [t.get() for t in tables]
    with pytest.raises(IndexError, match="10"):
        sparsekit.sparse_adam_step(*tables, cupy.array([1, 10]), cupy.ones((2, 4), cupy.float32), step=1, lr=0.1)
    for now, then in zip(tables, before, strict=True):
        assert np.array_equal(now.get(), then)
