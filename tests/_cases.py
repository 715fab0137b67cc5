"""Inputs: every dtype, index dtype, distribution and shape of the contract, by hypothesis or by name."""

from typing import NamedTuple

import numpy as np
from _oracles import BFLOAT16, wide
from hypothesis import strategies as st

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REALS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *REALS, *COMPLEX)
DISTRIBUTIONS = ("uniform", "zipf", "all-equal", "sorted", "reversed")

# Products beyond 2**63 and 2**64: no key fits one machine word.
HUGE = (
    (10**6,) * 4,
    (2**62,) * 5,
    (2**32, 2**31),
    (2**32, 2**32),
    (3, 2**62, 2**62),
    (2**63 - 1, 2),
    (75_025,) * 4 + (2, 3, 5),
    (2**31, 2**33, 7),
)


class Case(NamedTuple):
    """The arguments of coalesce."""

    indices: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]


def dtype_of(name):
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def reduces(dtype):
    """What coalesce offers for values of this dtype."""
    return ("sum", "mean", "prod") if dtype_of(dtype).kind == "c" else ("sum", "mean", "min", "max", "prod")


def numbers(rng, shape, dtype, special=False):
    """Random values of any dtype; with special also signed zeros, infinities, NaN, subnormals and the extremes."""
    dtype = dtype_of(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        full = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.5, full, full % 7).astype(dtype)
    if dtype.kind == "c":
        real = np.float32 if dtype == np.complex64 else np.float64
        x = np.empty(shape, dtype)
        x.real, x.imag = numbers(rng, shape, real, special), numbers(rng, shape, real, special)
        return x
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)
    with np.errstate(all="ignore"):
        x = np.asarray(x.astype(np.float32) if dtype == BFLOAT16 else x).astype(dtype)
        if special:
            tiny = np.nextafter(np.zeros((), wide(dtype)), 1) if dtype == np.float64 else 2.0**-149
            subnormal = {"float16": 2.0**-24, "bfloat16": 2.0**-130, "float32": 2.0**-149}.get(dtype.name, tiny)
            largest = {"float16": 65504.0, "bfloat16": 2.0**127, "float32": 2.0**127}.get(dtype.name, 2.0**1023)
            odd = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, subnormal, -3 * subnormal, largest, -largest]
            pick = np.array(odd)[rng.choice(len(odd), shape, p=[0.2, 0.2, 0.02, 0.02, 0.01, 0.01, 0.2, 0.2, 0.07, 0.07])]
            x = np.where(rng.random(shape) < 0.4, pick.astype(dtype), x)
    return x


def coordinates(rng, dims, nnz, distribution, index_dtype="int64"):
    """Indices (len(dims), nnz) with many duplicates, whatever the size of dims: drawn from a pool of coordinates."""
    limit = np.iinfo(index_dtype).max + 1
    pool = np.empty((len(dims), max(1, nnz // 3)), np.uint64)
    for row, dim in zip(pool, dims, strict=True):
        top = max(min(dim, limit), 1)
        row[:] = rng.integers(0, top, row.size, np.uint64)
        corner = rng.random(row.size)  # both ends: where packed keys overflow
        row[corner < 0.15], row[corner > 0.85] = 0, top - 1
    if distribution == "zipf":
        take = np.minimum(rng.zipf(1.2, nnz) - 1, pool.shape[1] - 1)
    elif distribution == "all-equal":
        take = np.zeros(nnz, np.int64)
    else:
        take = rng.integers(0, pool.shape[1], nnz)
    indices = pool[:, take]
    if distribution in ("sorted", "reversed") and len(dims):
        indices = indices[:, np.lexsort(indices[::-1])]
        indices = indices[:, ::-1] if distribution == "reversed" else indices
    return np.ascontiguousarray(indices).astype(index_dtype)


def case(seed, dims, dense, nnz, dtype, distribution="uniform", index_dtype="int64", special=False):
    rng = np.random.default_rng(seed)
    nnz = 0 if 0 in dims else nnz
    indices = coordinates(rng, dims, nnz, distribution, index_dtype)
    return Case(indices, numbers(rng, (nnz, *dense), dtype, special), (*dims, *dense))


@st.composite
def cases(draw, dtypes=DTYPES, max_nnz=200):
    """Small cases of every kind; a third of them in shapes whose product passes 2**63."""
    if draw(st.integers(0, 2)):
        dims = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 40, 1000, 70_000]), min_size=0, max_size=4)))
    else:
        dims = draw(st.sampled_from(HUGE))
    return case(
        draw(st.integers(0, 2**32 - 1)),
        dims,
        tuple(draw(st.lists(st.sampled_from([0, 1, 2, 5]), max_size=2))),
        draw(st.one_of(st.integers(0, 5), st.integers(0, max_nnz))),
        draw(st.sampled_from(dtypes)),
        draw(st.sampled_from(DISTRIBUTIONS)),
        draw(st.sampled_from(INTEGERS)),
        draw(st.booleans()),
    )


# Layouts: equal values, laid out in every way that a NumPy array can be.
def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def _strided(x):
    wider = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
    wider[..., 1::2] = x
    return wider[..., 1::2]


def _negative(x):
    return x[..., ::-1].copy()[..., ::-1]


def _first_axis_negative(x):
    return x[::-1].copy()[::-1]


def _big_endian(x):
    return x.astype(x.dtype.newbyteorder(">"))


def _unaligned(x):
    buffer = np.zeros(x.nbytes + 1, np.uint8)
    y = buffer[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


LAYOUTS = {
    "read-only": _read_only,
    "strided": _strided,
    "negative-stride": _negative,
    "negative-first": _first_axis_negative,
    "big-endian": _big_endian,
    "fortran": np.asfortranarray,
    "unaligned": _unaligned,
}
