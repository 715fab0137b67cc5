"""What users reported about the peers (FIELD.md), B-5 to B-7: top-k, Numba, DLPack; one test for each item."""

import threading
import tracemalloc

import _cases
import numpy as np
import pytest
from _tolerance import assert_bits, assert_coo, native, to_numpy

import sparsekit


def coalesce(indices, values, shape, backend, **options):
    return sparsekit.coalesce(np.array(indices), np.array(values), shape, backend=backend, **options)


# B-5. Top-k.
def test_b5_74_lowest_index_wins(backend):
    """pytorch#27542: ties in any order, other ones for another k."""
    assert sparsekit.topk(np.array([3, 2, 3, 2, 1, 1]), 2, backend=backend).indices.tolist() == [[0, 2]]
    for k, want in ((1, [2]), (2, [2, 4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4])):
        assert sparsekit.topk(np.array([1, 2, 5, 4, 5]), k, backend=backend).indices.tolist() == [want]


def test_b5_75_nan_of_either_sign(backend):
    """pytorch#16762, intel/torch-xpu-ops#4839: -NaN dropped out, or the index was -1."""
    x = np.arange(1, 65, dtype=np.float32)
    x[17] = -np.nan
    assert sparsekit.topk(x, 3, backend=backend).indices.tolist() == [[17, 62, 63]]
    assert sparsekit.topk(np.array([np.nan, np.inf, 3]), 2, sorted=True, backend=backend).indices.tolist() == [[0, 1]]


def test_b5_76_k_out_of_range(backend):
    """oneflow#10624: k < 0 aborted; k = 0 was cast to unsigned."""
    for x, k in ((np.ones(3), -100), (np.ones(3), 4), (np.ones(0), 1)):
        with pytest.raises(ValueError, match=str(k)):
            sparsekit.topk(x, k, backend=backend)
    assert sparsekit.topk(np.ones(3), 0, backend=backend).nnz == sparsekit.topk(np.ones(0), 0, backend=backend).nnz == 0


def test_b5_77_no_size_cap(backend):
    """pytorch#64947: quantile stops at 2**24 elements."""
    if backend == "cupy-host":
        pytest.skip("the stand-in for a device takes half a minute")
    x = np.zeros(2**24 + 10, np.float16)
    x[[5, 2**24 + 3, 2**24 + 7]] = 1, -3, 2
    assert sparsekit.topk(x, 2, backend=backend).indices.tolist() == [[2**24 + 3, 2**24 + 7]]


def test_b5_79_global_over_all_arrays(backend):
    """grace#9: top-k of each layer is not top-k of the model."""
    coos = sparsekit.topk([np.ones(50), np.full(3, 2.0), np.ones((2, 2))], 4, backend=backend)
    assert [coo.nnz for coo in coos] == [1, 3, 0]


def test_b5_80_by_magnitude(backend):
    """apple/pfl-research#65 forgot the absolute value; |-128| wraps in int8."""
    assert sparsekit.topk(np.array([-5, 1, 2]), 1, backend=backend).values.tolist() == [-5]
    assert sparsekit.topk(np.array([127, -128, 1], np.int8), 1, backend=backend).values.tolist() == [-128]


def test_b5_83_exactly_k_of_tied_values(backend):
    """A mask of |g| >= kth selects 10000 for k = 10."""
    masks = sparsekit.topk_mask([np.ones(1000)] * 10, 10, backend=backend)
    assert [int(m.sum()) for m in masks] == [10] + [0] * 9 and masks[0][:10].all()


def test_b5_84_nothing_is_concatenated(cpu_backend):
    """waveglow#92: flattening all gradients doubled the memory."""
    arrays = [np.random.default_rng(i).standard_normal(250_000).astype(np.float32) for i in range(16)]
    sparsekit.topk(arrays, 100, backend=cpu_backend)
    tracemalloc.start()
    sparsekit.topk(arrays, 100, backend=cpu_backend)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000 / 2  # of 16 MB


# B-6. Numba.
def test_b6_86_two_threads_at_once(backend):
    """numba#8563: the workqueue layer aborts the process."""
    case, results = _cases.case(5, (100,), (), 100_000, "float32"), []
    callers = [threading.Thread(target=lambda: results.append(sparsekit.coalesce(*case, backend=backend))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert_coo(results[0], *results[1])


def test_b6_88_no_folder_for_the_cache(run_python):
    """numba#4032: cache=True failed at import on a read-only installation without a home."""
    pytest.importorskip("numba")
    code = "import numpy as np, sparsekit as s\nprint(s.topk(np.ones(3), 2, backend='numba').indices.tolist())"
    nowhere = "/proc/nonexistent"
    env = {
        "HOME": nowhere,
        "NUMBA_CACHE_DIR": nowhere,
        "XDG_CACHE_HOME": nowhere,
        "TMPDIR": nowhere,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert "[[0, 1]]" in run_python(code, **env)


# B-7. DLPack.
def test_b7_93_99_negative_strides(backend):
    """pytorch#188023: torch.from_dlpack aborted the process; tensorflow#51598."""
    x = np.arange(12.0).reshape(3, 4)[:, ::-1]
    assert sparsekit.topk(x, 1, backend=backend).indices.tolist() == [[2], [0]]
    coo = sparsekit.coalesce(np.array([0, 1, 0])[::-1], x, (2, 4), backend=backend)
    assert_bits(coo.values, native(np.stack([x[0] + x[2], x[1]])))


def test_b7_95_read_only(backend):
    """numpy#20742: read-only arrays were not exported, or came out writeable."""
    x = np.array([1.0, -2.0])
    x.flags.writeable = False
    coo = sparsekit.coalesce(np.array([0, 0]), x, (1,), backend=backend)
    assert coo.values.flags.writeable and coo.values[0] == -1.0
    with pytest.raises(ValueError, match="param"):
        sparsekit.sparse_adam_step(x, np.zeros(2), np.zeros(2), np.array([0]), np.ones(1), step=1, backend=backend)
    assert x.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("dtype", ["bool", "bfloat16"])
def test_b7_96_97_bool_and_bfloat16_tensors(backend, torch, dtype):
    """pytorch#94463, cupy#8801: types that DLPack did not carry."""
    values = torch.tensor([1, 0, 1]).to(getattr(torch, dtype))
    coo = sparsekit.coalesce(torch.tensor([1, 0, 1]), values, (2,), backend=backend)
    assert coo.values.dtype == values.dtype and to_numpy(coo.values).astype(int).tolist() == [
        0,
        1 if dtype == "bool" else 2,
    ]


def test_b7_101_what_dlpack_refuses(backend, torch):
    """Big-endian, structured and long double arrays, sparse tensors, sizes of zero."""
    assert coalesce([0, 0], np.array([1, 2], ">f4"), (1,), backend).values.tolist() == [3.0]
    structured = np.zeros(4, [("a", "f4"), ("b", "f8")])
    structured["a"] = 1, 2, 3, 4
    assert sparsekit.coalesce(np.array([0, 1, 0, 1]), structured["a"], (2,), backend=backend).values.tolist() == [
        4.0,
        6.0,
    ]
    for wrong in (np.ones(2, np.longdouble), structured[:2], torch.eye(2).to_sparse()):
        with pytest.raises(TypeError):
            sparsekit.topk(wrong, 1, backend=backend)
    assert coalesce(np.empty((2, 0), int), np.empty((0, 0)), (0, 3, 0), backend).nnz == 0
