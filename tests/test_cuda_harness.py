"""The harness finds what goes wrong on a device, and lets pass what does not: one small kernel for each fault."""

import numpy as np
import pytest
from conftest import CUPY_HOST, require


@pytest.fixture(scope="module")
def cuda():
    require(CUPY_HOST)
    import _cuda

    return _cuda


def kernel(cuda, body, parameters="int* out, long long n", before=""):
    code = f'{before}\nextern "C" __global__ void k({parameters}) {{\n{body}\n}}'
    return cuda.Module(code, "test.cu").get_function("k")


def device(cuda, values):
    from _cuda import _arrays as xp

    return xp.asarray(np.array(values))


# (what the report says, blocks, threads, body); out has 64 ints
FAULTS = {
    "a write past the end": ("out of bounds", 1, 1, "out[n] = 1;"),
    "a read before the begin": ("out of bounds", 1, 1, "out[0] = out[-1];"),
    "a null pointer": ("out of bounds", 1, 1, "int* p = out - (unsigned long long)out / 4; *p = 1;"),
    "two threads write": ("race", 1, 2, "out[0] = threadIdx.x;"),
    "two blocks write": ("race", 2, 1, "out[0] = blockIdx.x;"),
    "one writes, one reads": ("race", 1, 2, "if (threadIdx.x) out[0] = 1; else out[1] = out[0];"),
    "an atomic and a plain write": ("race", 1, 2, "if (threadIdx.x) atomicAdd(out, 1); else out[0] = 5;"),
    "no barrier in shared memory": (
        "race",
        1,
        64,
        "__shared__ int s[64]; int i = threadIdx.x; s[i] = 0; __syncthreads(); s[i] = out[3]; out[i] = s[63 - i];",
    ),
    "a warp without __syncwarp": (
        "race",
        1,
        32,
        "__shared__ int s[32]; int i = threadIdx.x; s[i] = 0; __syncwarp(); s[i] = out[3]; out[i] = s[31 - i];",
    ),
    "shared memory that nobody wrote": ("uninitialised", 1, 1, "__shared__ int s[2]; out[0] = s[threadIdx.x];"),
    "past shared memory": (
        "out of bounds",
        1,
        1,
        "__shared__ int s[4]; for (int i = 0; i < n; i++) s[i] = i; *out = s[*out];",
    ),
    "a barrier that some miss": ("divergent barrier", 1, 64, "if (threadIdx.x < 32) __syncthreads(); out[threadIdx.x] = 1;"),
    "another barrier": (
        "divergent barrier",
        1,
        64,
        "if (threadIdx.x < 32) { __syncthreads(); out[threadIdx.x] = 1; }\nelse { __syncthreads(); out[threadIdx.x] = 2; }",
    ),
    "a mask that names too many": ("wrong mask", 1, 32, "if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(~0u, 1, 0);"),
    "a mask without itself": ("wrong mask", 1, 32, "out[threadIdx.x] = __ballot_sync(1, 1);"),
    "a shuffle from outside of the mask": (
        "the mask does not name",
        1,
        32,
        "if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffff, 1, 20);",
    ),
    "no alignment": ("misaligned", 1, 1, "*(long long*)(out + 1) = 1;"),
    "no end": ("endless loop", 1, 1, "for (volatile int i = 0; i >= 0; i = 0) {} out[0] = 1;"),
    "division by zero": ("division by zero", 1, 1, "out[0] = 5 / (int)(n - 64);"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("order", ["forward", "random"])
def test_each_fault_is_found(cuda, fault, order):
    message, blocks, threads, body = FAULTS[fault]
    out = device(cuda, np.zeros(64, np.int32))
    with pytest.raises(cuda.KernelError, match=message):
        kernel(cuda, body)((blocks,), (threads,), (out, np.int64(64)), schedule=cuda.Schedule(order))


# (blocks, threads, body, what out[:4] is then)
SOUND = {
    "one thread": (1, 1, "out[0] = (int)n;", [64, 0, 0, 0]),
    "atomics": (2, 32, "atomicAdd(out, 1);", [64, 0, 0, 0]),
    "a barrier": (
        1,
        64,
        "__shared__ int s[64]; s[threadIdx.x] = threadIdx.x; __syncthreads(); out[threadIdx.x] = s[63 - threadIdx.x];",
        [63, 62, 61, 60],
    ),
    "a warp": (
        1,
        32,
        "__shared__ int s[32]; s[threadIdx.x] = threadIdx.x; __syncwarp(); out[threadIdx.x] = s[31 - threadIdx.x];",
        [31, 30, 29, 28],
    ),
    "a fence and a counter": (
        2,
        1,
        "out[1 + blockIdx.x] = 7; __threadfence(); if (atomicAdd(out, 1) == 1) { __threadfence(); out[3] = out[1] + out[2]; }",
        [2, 7, 7, 14],
    ),
    "votes": (1, 32, "out[threadIdx.x] = __popc(__ballot_sync(~0u, threadIdx.x > 9)) + __all_sync(~0u, 1);", [23] * 4),
    "integers": (
        1,
        1,
        "out[0] = (int)(n << 60 >> 60); out[1] = -7 / 2; out[2] = __clz(1);",
        [0, -3, 31, 0],
    ),
}


@pytest.mark.parametrize("case", SOUND)
@pytest.mark.parametrize("schedule", [("forward", 0, 0), ("reverse", 0, 0), ("random", 1, 0), ("random", 2, 5)])
def test_sound_kernels_pass(cuda, case, schedule):
    blocks, threads, body, want = SOUND[case]
    out = device(cuda, np.zeros(64, np.int32))
    kernel(cuda, body)((blocks,), (threads,), (out, np.int64(64)), schedule=cuda.Schedule(*schedule))
    assert out.get()[:4].tolist() == want


def test_what_no_device_would_launch(cuda):
    k, out = kernel(cuda, "out[0] = 1;"), device(cuda, np.zeros(64, np.int32))
    for grid, block in (((0,), (1,)), ((1,), (1025,)), ((1, 65536), (1,))):
        with pytest.raises(cuda.KernelError):
            k(grid, block, (out, np.int64(64)))
    assert not out.get().any()


@pytest.mark.parametrize(
    "arguments",
    [
        lambda out: (out,),
        lambda out: (out, np.int64(1), np.int64(2)),
        lambda out: (out, np.int32(64)),
        lambda out: (out, np.float64(64)),
        lambda out: (out.get(), np.int64(64)),
        lambda out: (out.astype(np.int64), np.int64(64)),
    ],
)
def test_arguments_of_the_wrong_type(cuda, arguments):
    out = device(cuda, np.zeros(64, np.int32))
    with pytest.raises((cuda.KernelError, TypeError)):
        kernel(cuda, "out[0] = 1;")((1,), (1,), arguments(out))


def test_arithmetic_is_a_devices(cuda):
    """CuPy flushes subnormals of float32; PTX without .ftz keeps every bit; a fused operation is rounded once."""
    body = """out[0] = x[0] * 0.5f; out[1] = __fmaf_rn(x[1], x[1], -x[2]);
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(out[2]) : "f"(x[0]), "f"(0.5f));"""
    tiny, x = np.float32(2.0**-126), np.float32(1 + 2.0**-12)
    out = device(cuda, np.zeros(3, np.float32))
    kernel(cuda, body, "float* out, const float* x")((1,), (1,), (out, device(cuda, np.array([tiny, x, x * x], np.float32))))
    assert out.get()[0] == 0
    assert out.get()[1] == np.float64(x) * np.float64(x) - np.float64(x * x) == 2.0**-24
    assert out.get()[2] == tiny / 2


def test_the_report_names_the_line(cuda):
    with pytest.raises(cuda.KernelError, match=r"line 4 of test\.cu"):
        kernel(cuda, "int a = 1;\nout[n + a] = 2;")((1,), (1,), (device(cuda, np.zeros(4, np.int32)), np.int64(4)))


def test_what_cannot_be_translated_is_refused(cuda):
    body = 'asm volatile("cp.async.wait_all;"); out[0] = 1;'
    with pytest.raises(cuda.Unsupported, match=r"cp\.async"):
        kernel(cuda, body)
