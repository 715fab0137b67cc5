"""The stand-in for CuPy's arrays refuses what would fail, wait or be undefined on a device."""

import numpy as np
import pytest
from _cuda import _arrays as xp


@pytest.fixture
def x():
    return xp.asarray(np.array([3, 1, 2]))


def test_results_are_device_arrays(x):
    for result in (x + 1, 2 - x, x.sum(), x.max(), x[1], xp.cumsum(x), xp.where(x > 1, x, 0), abs(x), xp.sqrt(x), x == x, x.T):
        assert isinstance(result, xp.ndarray)
    assert x.sum().shape == () and x.sum().get() == 6
    assert xp.argsort(x).get().tolist() == [1, 2, 0]
    x.sort()
    assert x.get().tolist() == [1, 2, 3]
    assert (x.nbytes, x.itemsize, x.size, x.strides, x.dtype, x.flags.c_contiguous) == (24, 8, 3, (8,), np.int64, True)


def test_views_share_memory_and_copies_do_not(x):
    x[1:][0] = 7
    x.reshape(3, 1)[2] = 8
    x.view(np.uint64)[0] = 9
    assert x.get().tolist() == [9, 7, 8]
    assert x[1:].data.ptr == x.data.ptr + 8
    assert x.astype(np.int64, copy=False) is x and xp.ascontiguousarray(x) is x and xp.asarray(x) is x
    assert x.astype(np.int64) is not x
    host = np.zeros(2)
    xp.asarray(host)[:] = 5
    assert not host.any()


@pytest.mark.parametrize(
    "use",
    [
        lambda x, host: x + host,
        lambda x, host: host + x,
        lambda x, host: x == host,
        lambda x, host: x.__iadd__(host),
        lambda x, host: np.asarray(x),
        lambda x, host: np.add(x, x),
        lambda x, host: np.concatenate([x, x]),
        lambda x, host: xp.concatenate([x, host]),
        lambda x, host: x.__setitem__(slice(None), host),
        lambda x, host: x.__setitem__(0, (1,)),
        lambda x, host: x[host],
        lambda x, host: x[[0]],
        lambda x, host: list(x),
        lambda x, host: range(x[0]),
        lambda x, host: x.sum(where=True),
        lambda x, host: xp.cumsum(x, keepdims=True),
        lambda x, host: xp.add(x, x, where=True),
    ],
)
def test_refuses_what_cupy_refuses(x, use):
    with pytest.raises(TypeError):
        use(x, np.arange(3))
    assert x.get().tolist() == [3, 1, 2]


def test_refuses_other_sorts(x):
    for sort in (lambda: xp.argsort(x, kind="quicksort"), lambda: x.sort(kind="heapsort")):
        with pytest.raises(ValueError, match="stable"):
            sort()
    for name in ("lexsort", "argpartition", "partition"):
        with pytest.raises(AttributeError, match=name):
            getattr(xp, name)


def test_refuses_names_that_cupy_lacks(x):
    pytest.importorskip("cupy")
    for owner, name in ((xp, "busday_count"), (xp, "nditer"), (x, "ctypes"), (x, "setflags"), (x.flags, "writeable")):
        with pytest.raises(AttributeError, match=name):
            getattr(owner, name)


def test_refuses_two_writes_to_one_place(x):
    x[xp.asarray([0, 2])] = xp.asarray([5, 6])
    x[xp.asarray([1, 1])] = 0  # the same value twice is no race
    with pytest.raises(AssertionError, match="twice"):
        x[xp.asarray([1, 1])] = xp.asarray([5, 6])
    assert x.get().tolist() == [5, 0, 6]


def test_empty_is_poisoned():
    assert np.isnan(xp.empty(3).get()).all()
    assert (xp.empty(2, np.int64).get() == 0x4D4D4D4D4D4D4D4D).all()
    assert (xp.empty_like(xp.zeros(2, np.uint16)).get() == 0x4D4D).all()


def test_counts_waits(x):
    waiting = [
        lambda: x.get(),
        lambda: int(x[0]),
        lambda: bool(x[0]),
        lambda: x[0].item(),
        lambda: x[x > 1],
        lambda: xp.nonzero(x),
        lambda: xp.unique(x),
        lambda: xp.where(x),
    ]
    for i, wait in enumerate(waiting):
        before = xp.syncs
        wait()
        assert xp.syncs == before + 1, i
    before = xp.syncs
    x[x > 1] = 0
    x[xp.argsort(x)] = xp.cumsum(x) + x.sum() * 2
    assert xp.syncs == before


def test_computes_on_the_current_device_only(x):
    other = xp.Device(1)
    with other:
        y = xp.zeros(3)
        assert y.device == other and (y + 1).device == other
        assert x[1:].device == xp.Device(0)
        for use in (lambda: x + 1, lambda: y + x, lambda: x.sum(), lambda: xp.cumsum(x), lambda: x.__setitem__(0, 1)):
            with pytest.raises(ValueError, match="current device"):
                use()
    assert (x + 1).device == xp.Device(0)
    assert y.get().tolist() == [0, 0, 0]
