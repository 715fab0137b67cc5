"""Bad input raises ValueError, TypeError or IndexError that says what was expected and what came, before any write."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from _tolerance import assert_bits

import sparsekit as sk


def fresh():
    return SimpleNamespace(
        indices=np.array([[0, 1, 2, 1], [1, 0, 3, 0]]),
        values=np.array([1.0, 2.0, 3.0, 4.0]),
        hybrid=np.ones((4, 2)),
        x=np.array([[1.0, -3.0, 2.0], [np.nan, 0.0, 5.0]]),
        param=np.full((5, 2), 2.0, np.float32),
        exp_avg=np.full((5, 2), 0.5, np.float32),
        exp_avg_sq=np.full((5, 2), 0.25, np.float32),
        rows=np.array([4, 1, 4]),
        grads=np.ones((3, 2), np.float32),
    )


def zero_stride(dtype=np.float32):
    return np.lib.stride_tricks.as_strided(np.ones(2, dtype), (5, 2), (0, np.dtype(dtype).itemsize))  # writeable


def read_only(x):
    x.flags.writeable = False
    return x


def spoil(x, where, value, dtype=None):
    x = x.astype(dtype or x.dtype)
    x[where] = value
    return x


def coalesce(s, **change):
    arguments = {"indices": s.indices, "values": s.values, "shape": (3, 4), **change}
    return sk.coalesce(**arguments)


def adam(s, **change):
    names = ("param", "exp_avg", "exp_avg_sq")
    arguments = {name: getattr(s, name) for name in names} | {"indices": s.rows, "values": s.grads, "step": 1} | change
    return sk.sparse_adam_step(**arguments)


LAST = (1, 2)
MAX64 = 2**64 - 1
STRANGE = {
    "object": np.array([1, 2, 3, 4], object),
    "str|<U1": np.array(list("1234")),
    "datetime64": np.zeros(4, "M8[s]"),
    "longdouble|float128": np.zeros(4, np.longdouble),
    "void|float32": np.zeros(4, "f4,f4"),
}

# (what is wrong, call, error, patterns that the message must hold)
COALESCE = [
    ("indices 3-D", lambda s: coalesce(s, indices=s.indices[None]), ValueError, ["indices", r"\(1, 2, 4\)|3"]),
    ("indices 0-D", lambda s: coalesce(s, indices=np.array(1)), ValueError, ["indices", r"\(\)|0"]),
    ("values 0-D", lambda s: coalesce(s, values=np.array(1.0)), ValueError, ["values"]),
    ("too few values", lambda s: coalesce(s, values=s.values[:3]), ValueError, ["3", "4"]),
    ("float indices", lambda s: coalesce(s, indices=s.indices * 1.0), TypeError, ["integer", "float64"]),
    ("bool indices", lambda s: coalesce(s, indices=s.indices > 0), TypeError, ["integer", "bool"]),
    ("complex indices", lambda s: coalesce(s, indices=s.indices * 1j), TypeError, ["integer", "complex128"]),
    (
        "negative index",
        lambda s: coalesce(s, indices=spoil(s.indices, LAST, -1)),
        IndexError,
        [r"indices\[1, 2\] = -1 is out of range for dimension 1 of size 4"],
    ),
    (
        "index beyond",
        lambda s: coalesce(s, indices=spoil(s.indices, (0, 3), 3, np.int8)),
        IndexError,
        [r"indices\[0, 3\] = 3 is out of range for dimension 0 of size 3"],
    ),
    (
        "uint64 index",
        lambda s: coalesce(s, indices=spoil(s.indices, LAST, MAX64, np.uint64)),
        IndexError,
        [str(MAX64), "size 4"],
    ),
    ("index far beyond", lambda s: coalesce(s, indices=spoil(s.indices, LAST, -(2**63))), IndexError, [str(-(2**63))]),
    (
        "1-D index",
        lambda s: coalesce(s, indices=s.rows, values=s.grads, shape=(4, 2)),
        IndexError,
        ["= 4", "dimension 0", "size 4"],
    ),
    ("dimension of size 0", lambda s: coalesce(s, shape=(0, 4)), IndexError, ["= 0", "dimension 0", "size 0"]),
    ("shape too short", lambda s: coalesce(s, shape=(3,)), ValueError, ["2", r"\(3,\)|1"]),
    ("shape too long", lambda s: coalesce(s, shape=(3, 4, 2)), ValueError, [r"\(3, 4, 2\)|\(2,\)"]),
    (
        "other dense dims",
        lambda s: coalesce(s, values=s.hybrid, shape=(3, 4, 5)),
        ValueError,
        [r"\(2,\)|2", r"\(5,\)|5"],
    ),
    (
        "no dense dims in shape",
        lambda s: coalesce(s, values=s.hybrid),
        ValueError,
        [r"\(3, 4\)", r"1 dense|\(2,\)|\(4, 2\)"],
    ),
    ("negative dim", lambda s: coalesce(s, shape=(3, -4)), ValueError, ["-4"]),
    ("float dim", lambda s: coalesce(s, shape=(3, 4.0)), TypeError, ["int", "float|4.0"]),
    ("unknown reduce", lambda s: coalesce(s, reduce="median"), ValueError, ["median", "sum", "prod"]),
    ("reduce None", lambda s: coalesce(s, reduce=None), (TypeError, ValueError), ["None", "sum"]),
    ("min of complex", lambda s: coalesce(s, values=s.values * 1j, reduce="min"), TypeError, ["min", "complex"]),
    ("max of complex", lambda s: coalesce(s, values=s.values * 1j, reduce="max"), TypeError, ["max", "complex"]),
    ("unknown backend", lambda s: coalesce(s, backend="cuda13"), ValueError, ["cuda13", "scipy"]),
    *(
        (f"values of {name}", lambda s, values=values: coalesce(s, values=values), TypeError, ["values", name])
        for name, values in STRANGE.items()
    ),
    ("is_coalesced float", lambda s: sk.is_coalesced(s.values), TypeError, ["integer", "float64"]),
    ("is_coalesced range", lambda s: sk.is_coalesced(s.indices, (3, 3)), IndexError, ["= 3", "dimension 1", "size 3"]),
    ("is_coalesced negative", lambda s: sk.is_coalesced(np.array([-1, 0]), (3,)), IndexError, ["= -1", "size 3"]),
    ("is_coalesced shape", lambda s: sk.is_coalesced(s.indices, (3,)), ValueError, ["2", r"\(3,\)|1"]),
]

TOPK = [
    row
    for name, f in (("topk", sk.topk), ("topk_mask", sk.topk_mask))
    for row in [
        (f"{name} without k", lambda s, f=f: f(s.x), TypeError, ["k", "ratio"]),
        (f"{name} with both", lambda s, f=f: f(s.x, 1, ratio=0.5), TypeError, ["k", "ratio"]),
        (f"{name} k negative", lambda s, f=f: f(s.x, -1), ValueError, ["-1", "6"]),
        (f"{name} k too large", lambda s, f=f: f(s.x, 7), ValueError, ["7", "6"]),
        (f"{name} k too large for a list", lambda s, f=f: f([s.x, s.values], 11), ValueError, ["11", "10"]),
        (f"{name} k of nothing", lambda s, f=f: f(np.empty(0), 1), ValueError, ["1", "0"]),
        (f"{name} k bool", lambda s, f=f: f(s.x, True), TypeError, ["int", "bool"]),
        (f"{name} k float", lambda s, f=f: f(s.x, 2.0), TypeError, ["int", "float"]),
        (f"{name} k text", lambda s, f=f: f(s.x, "2"), TypeError, ["int", "str"]),
        (f"{name} ratio negative", lambda s, f=f: f(s.x, ratio=-0.1), ValueError, ["-0.1", "0", "1"]),
        (f"{name} ratio too large", lambda s, f=f: f(s.x, ratio=1.5), ValueError, ["1.5", "0"]),
        (f"{name} ratio NaN", lambda s, f=f: f(s.x, ratio=np.nan), ValueError, ["nan", "0"]),
        (f"{name} ratio text", lambda s, f=f: f(s.x, ratio="0.5"), TypeError, ["ratio", "str"]),
        (f"{name} nan=", lambda s, f=f: f(s.x, 1, nan="smallest"), ValueError, ["smallest", "largest", "raise"]),
        (f"{name} NaN", lambda s, f=f: f(s.x, 1, nan="raise"), ValueError, ["NaN"]),
        (f"{name} NaN in a list", lambda s, f=f: f([s.values, s.x], 1, nan="raise"), ValueError, ["NaN"]),
        (
            f"{name} NaN complex",
            lambda s, f=f: f(np.array([1, complex(0, np.nan)]), 1, nan="raise"),
            ValueError,
            ["NaN"],
        ),
        (f"{name} mixed", lambda s, f=f: f([s.x, s.indices], 1), TypeError, ["float64", "int64"]),
        (f"{name} object", lambda s, f=f: f(STRANGE["object"], 1), TypeError, ["object"]),
        (f"{name} datetime", lambda s, f=f: f(STRANGE["datetime64"], 1), TypeError, ["datetime64"]),
        (f"{name} unknown backend", lambda s, f=f: f(s.x, 1, backend="cuda13"), ValueError, ["cuda13", "scipy"]),
    ]
]

NAMES = ("param", "exp_avg", "exp_avg_sq")
ADAM = [
    *(
        (
            f"read-only {n}",
            lambda s, n=n: adam(s, **{n: read_only(getattr(s, n))}),
            ValueError,
            [rf"\b{n}\b", "read-?only|writ"],
        )
        for n in NAMES
    ),
    *(
        (
            f"zero stride {n}",
            lambda s, n=n: adam(s, **{n: zero_stride()}),
            ValueError,
            [rf"\b{n}\b", "stride|overlap|broadcast"],
        )
        for n in NAMES
    ),
    *(
        (
            f"{n} is another",
            lambda s, n=n: adam(s, **{n: s.param}),
            ValueError,
            [rf"\b{n}\b", "param", "overlap|share|memory"],
        )
        for n in NAMES[1:]
    ),
    ("both states one", lambda s: adam(s, exp_avg_sq=s.exp_avg), ValueError, ["exp_avg_sq", "overlap|share|memory"]),
    (
        "states overlap",
        lambda s: adam(s, exp_avg=(b := np.zeros((6, 2), "f4"))[1:], exp_avg_sq=b[:5]),
        ValueError,
        ["overlap|share"],
    ),
    *(
        (
            f"{n} float64",
            lambda s, n=n: adam(s, **{n: getattr(s, n) * np.float64(1)}),
            TypeError,
            [n, "float32", "float64"],
        )
        for n in NAMES[1:]
    ),
    (
        "states of 16 bits",
        lambda s: adam(s, param=np.ones((5, 2), "f2"), exp_avg=np.ones((5, 2), "f2"), values=s.grads.astype("f2")),
        TypeError,
        ["exp_avg", "float32", "float16"],
    ),
    (
        "state shape",
        lambda s: adam(s, exp_avg_sq=s.exp_avg_sq[:4].copy()),
        ValueError,
        ["exp_avg_sq", r"\(5, 2\)", r"\(4, 2\)"],
    ),
    ("gradient dtype", lambda s: adam(s, values=s.grads.astype(float)), TypeError, ["float32", "float64"]),
    (
        "integer param",
        lambda s: adam(s, param=np.ones((5, 2), int), values=s.grads.astype(int)),
        TypeError,
        ["param", "int64", "float"],
    ),
    (
        "complex param",
        lambda s: adam(s, param=np.ones((5, 2), "c8"), values=s.grads.astype("c8")),
        TypeError,
        ["param", "complex64", "float"],
    ),
    ("row length", lambda s: adam(s, values=np.ones((3, 3), "f4")), ValueError, ["3", "2"]),
    ("number of rows", lambda s: adam(s, values=s.grads[:2]), ValueError, ["3", "2"]),
    ("too many sparse dims", lambda s: adam(s, indices=np.zeros((3, 3), int)), ValueError, ["3", r"2"]),
    ("float indices", lambda s: adam(s, indices=s.rows * 1.0), TypeError, ["integer", "float64"]),
    ("index beyond", lambda s: adam(s, indices=np.array([1, 2, 5])), IndexError, ["= 5", "dimension 0", "size 5"]),
    ("index negative", lambda s: adam(s, indices=np.array([1, -1, 2])), IndexError, ["= -1", "dimension 0", "size 5"]),
    *((f"step {v!r}", lambda s, v=v: adam(s, step=v), ValueError, ["step", str(v), "1"]) for v in (0, -3)),
    *(
        (f"step {v!r}", lambda s, v=v: adam(s, step=v), TypeError, ["step", rf"{type(v).__name__}|{v!r}", "int"])
        for v in (1.5, True, "1", None)
    ),
    *(
        (f"{n} {v}", lambda s, n=n, v=v: adam(s, **{n: v}), ValueError, [n, str(v), "0"])
        for n in ("lr", "eps", "weight_decay")
        for v in (-1.5, np.nan)
    ),
    *(
        (f"{n} {v!r}", lambda s, n=n, v=v: adam(s, **{n: v}), TypeError, [n, rf"{type(v).__name__}|\b{v!r}"])
        for n in ("lr", "eps", "weight_decay")
        for v in ("0.1", None, 1j)
    ),
    *(
        (f"betas {v}", lambda s, v=v: adam(s, betas=v), ValueError, ["betas?", str(b)])
        for v, b in [
            ((1.0, 0.9), "1.0"),
            ((-0.1, 0.9), "-0.1"),
            ((0.9, 1.5), "1.5"),
            ((np.nan, 0.9), "nan"),
            ((0.9, np.nan), "nan"),
        ]
    ),
    *(
        (f"betas {v!r}", lambda s, v=v: adam(s, betas=v), (TypeError, ValueError), ["betas"])
        for v in (0.9, (0.9,), (0.9, 0.9, 0.9), ("0.9", 0.9), None)
    ),
    ("unknown backend", lambda s: adam(s, backend="cuda13"), ValueError, ["cuda13", "scipy"]),
]


@pytest.mark.parametrize(("call", "error", "patterns"), [pytest.param(*row[1:], id=row[0]) for row in COALESCE + TOPK + ADAM])
def test_bad_input(backend, call, error, patterns):
    s, before = fresh(), fresh()
    with sk.use_backend(backend), pytest.raises(error) as raised:
        call(s)
    message = str(raised.value)
    for pattern in patterns:
        assert re.search(pattern, message), f"{pattern!r} is not in {message!r}"
    for name, array in vars(before).items():
        assert_bits(getattr(s, name), array)


FAULT = r"indices\[1, (250000\] = 7|299999\] = -1) is out of range for dimension 1 of size 5"


def test_faults_are_found_in_long_input(backend):
    """In whatever block or thread a fault lies, the message names one that is there, and nothing was written."""
    indices = np.zeros((2, 300_000), np.int64)
    indices[1, [250_000, 299_999]] = 7, -1
    with pytest.raises(IndexError, match=FAULT):
        sk.coalesce(indices, np.ones(300_000), (3, 5), backend=backend)
    arrays = [np.ones((3, 5)) for _ in range(3)]
    with pytest.raises(IndexError, match=FAULT):
        sk.sparse_adam_step(*arrays, indices, np.ones(300_000), step=1, backend=backend)
    assert all(np.all(a == 1) for a in arrays)


LAYOUTS = {
    "C": lambda: np.ones((5, 4)),
    "F": lambda: np.ones((5, 4), order="F"),
    "strided": lambda: np.ones((10, 4))[::2],
    "swapped": lambda: np.ones((5, 4), ">f8"),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("nnz", [2, 20_000])
@pytest.mark.parametrize("bad", [7, -1])
def test_rows_out_of_range_in_any_layout(backend, layout, nnz, bad):
    """Whoever looks, the core or the backend in a pass of its own: the same message, and nothing written."""
    arrays = [layout() for _ in range(3)]
    rows = np.arange(nnz) % 5
    rows[-1] = bad
    with pytest.raises(IndexError, match=rf"indices\[0, {nnz - 1}\] = {bad} is out of range for dimension 0 of size 5"):
        sk.sparse_adam_step(*arrays, rows, np.ones((nnz, 4)), step=1, backend=backend)
    assert all(np.all(a == 1) for a in arrays)


def test_bad_calls_of_add(backend):
    good = sk.COO(np.array([[0]]), np.array([1.0]), (3,))
    outside = sk.COO(np.array([[3]]), np.array([1.0]), (3,))
    with pytest.raises(IndexError, match="= 3 is out of range for dimension 0 of size 3"):
        sk.add(good, outside, backend=backend)
    with pytest.raises(TypeError):
        sk.add(good, backend=backend)
    assert_bits(good.values, np.array([1.0]))
