"""Scalar helpers that kernels inline: 16-bit floats, wide accumulators, prefetch.

numba has neither float16 nor bfloat16. Kernels see such arrays as uint16 and are told which one it is by ``form``; any uint16
array in this backend holds 16-bit floats (plain uint16 integers are widened before they come here).
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from sparsekit_numba._jit import inlined

PLAIN, HALF, BFLOAT = 0, 1, 2
FORMS = {"float16": HALF, "bfloat16": BFLOAT}
_INTERPRETED = bool(numba.config.DISABLE_JIT)  # type: ignore[attr-defined]
SUM, MEAN, MIN, MAX, PROD = 0, 1, 2, 3, 4
OPS = {"sum": SUM, "mean": MEAN, "min": MIN, "max": MAX, "prod": PROD}


@inlined
def _bits(x: Any) -> Any:
    return np.float32(x).view(np.uint32)


@inlined
def _float(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)  # numba's integer arithmetic yields 64 bits: cut back to 32


@inlined
def half_to_float(h: Any) -> Any:
    """float16 bits -> float32, exact: shift into place, then let a multiplication by 2**112 mend the exponent, subnormals too."""
    magnitude = np.uint32(h & np.uint16(0x7FFF)) << np.uint32(13)
    if (h & np.uint16(0x7C00)) == np.uint16(0x7C00):
        bits = np.uint32(magnitude | np.uint32(0x7F800000))
    else:
        bits = _bits(_float(magnitude) * np.float32(5.192296858534828e33))
    return _float(bits | (np.uint32(h & np.uint16(0x8000)) << np.uint32(16)))


@inlined
def float_to_half(x: Any) -> Any:
    """float32 -> float16 bits, to nearest even."""
    bits = _bits(x)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)  # NaN
    elif magnitude >= np.uint32(0x477FF000):
        half = np.uint32(0x7C00)  # rounds to infinity
    elif magnitude < np.uint32(0x38800000):
        # Below 2**-14: adding 0.5 leaves the subnormal half in the low mantissa bits, rounded to nearest even.
        half = np.uint32(_bits(_float(magnitude) + np.float32(0.5)) - np.uint32(0x3F000000))
    else:
        odd = np.uint32((magnitude >> np.uint32(13)) & np.uint32(1))
        half = np.uint32((magnitude - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13))
    return np.uint16(half | sign)


@inlined
def bfloat_to_float(b: Any) -> Any:
    return _float(np.uint32(b) << np.uint32(16))


@inlined
def float_to_bfloat(x: Any) -> Any:
    """float32 -> bfloat16 bits, to nearest even; NaN stays NaN."""
    bits = _bits(x)
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40))
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16((np.uint64(bits) + np.uint64(0x7FFF) + np.uint64(odd)) >> np.uint64(16))


def widen(x: Any, form: Any) -> Any:
    """A value in its accumulator type: 16-bit floats in float32, float32 in float64, complex64 in complex128."""
    if isinstance(x, np.uint16):
        return half_to_float(x) if form == HALF else bfloat_to_float(x)
    if isinstance(x, np.float32):
        return np.float64(x)
    if isinstance(x, np.complex64):
        return np.complex128(x)
    return x


@overload(widen, strict=False)
def _widen(x: Any, form: Any) -> Any:
    if x == types.uint16:
        return lambda x, form: half_to_float(x) if form == HALF else bfloat_to_float(x)
    if x == types.float32:
        return lambda x, form: np.float64(x)
    if x == types.complex64:
        return lambda x, form: np.complex128(x)
    return lambda x, form: x


def as_state(x: Any, form: Any) -> Any:
    """A parameter or gradient in the dtype of the optimizer's states: 16-bit floats in float32, others as they are."""
    return widen(x, form) if isinstance(x, np.uint16) else x


@overload(as_state, strict=False)
def _as_state(x: Any, form: Any) -> Any:
    if x == types.uint16:
        return lambda x, form: half_to_float(x) if form == HALF else bfloat_to_float(x)
    return lambda x, form: x


def store(out: Any, i: Any, j: Any, x: Any, form: Any) -> None:
    """out[i, j] = x, rounded once to out's dtype."""
    out[i, j] = x if out.dtype != np.uint16 else float_to_half(x) if form == HALF else float_to_bfloat(x)


@overload(store, strict=False)
def _store(out: Any, i: Any, j: Any, x: Any, form: Any) -> Any:
    if out.dtype == types.uint16:

        def store_16_bit(out: Any, i: Any, j: Any, x: Any, form: Any) -> None:
            out[i, j] = float_to_half(x) if form == HALF else float_to_bfloat(x)

        return store_16_bit

    def store_plain(out: Any, i: Any, j: Any, x: Any, form: Any) -> None:
        out[i, j] = x

    return store_plain


@inlined
def mix(z: Any) -> Any:
    """The finaliser of splitmix64: 64 bits that look drawn at random."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def float_to_bfloat_at_random(x: Any, drawn: Any) -> Any:
    """float32 -> one of the two bfloat16 around it, the nearer the likelier, by 64 random bits."""
    bits = _bits(x)
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return float_to_bfloat(x)  # NaN
    return np.uint16((np.uint64(bits) + (drawn >> np.uint64(48))) >> np.uint64(16))


@inlined
def float_to_half_at_random(x: Any, drawn: Any) -> Any:
    """float32 -> one of the two float16 around it, the nearer the likelier, by 64 random bits."""
    bits = _bits(x)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)  # NaN
    elif magnitude >= np.uint32(0x47800000):
        half = np.uint32(0x7C00)  # 2**16 and more: infinity
    elif magnitude < np.uint32(0x38800000):
        units = _float(magnitude) * np.float32(16777216.0)  # of the subnormals, 2**-24
        whole = np.floor(units)
        chance = np.float32(drawn >> np.uint64(40)) * np.float32(2.0**-24)
        half = np.uint32(np.uint32(whole) + np.uint32(1 if chance < units - whole else 0))
    else:
        half = np.uint32((np.uint64(magnitude) - np.uint64(0x38000000) + (drawn >> np.uint64(51))) >> np.uint64(13))
    return np.uint16(half | sign)


def store_at_random(out: Any, i: Any, j: Any, x: Any, form: Any, drawn: Any) -> None:
    """out[i, j] = x; of 16 bits, rounded at random."""
    if out.dtype == np.uint16:
        out[i, j] = float_to_half_at_random(x, drawn) if form == HALF else float_to_bfloat_at_random(x, drawn)
    else:
        out[i, j] = x


@overload(store_at_random, strict=False)
def _store_at_random(out: Any, i: Any, j: Any, x: Any, form: Any, drawn: Any) -> Any:
    if out.dtype == types.uint16:

        def store_16_bit(out: Any, i: Any, j: Any, x: Any, form: Any, drawn: Any) -> None:
            out[i, j] = float_to_half_at_random(x, drawn) if form == HALF else float_to_bfloat_at_random(x, drawn)

        return store_16_bit

    def store_plain(out: Any, i: Any, j: Any, x: Any, form: Any, drawn: Any) -> None:
        out[i, j] = x

    return store_plain


@inlined
def position(order: Any, i: Any) -> Any:
    """The input entry that sorted entry i is."""
    return np.uint64(i) if order is None else np.uint64(order[i])  # unsigned: numba need not look for negative ones


def combine(op: Any, a: Any, x: Any) -> Any:
    """One step of a reduction; min and max let NaN win."""
    if op <= MEAN:
        return a + x
    if op == PROD:
        return a * x
    if op == MIN:
        return x if x < a or x != x else a
    return x if x > a or x != x else a


@overload(combine, strict=False)
def _combine(op: Any, a: Any, x: Any) -> Any:
    if isinstance(a, types.Complex):  # which have no order
        return lambda op, a, x: a * x if op == PROD else a + x
    return combine


def divide(x: Any, n: Any) -> Any:
    """x / n; a complex x by parts, so that infinities do not make NaN. Integers, which never come here, keep their type."""
    if isinstance(x, complex):
        return complex(x.real / n, x.imag / n)
    return x if isinstance(x, int | np.integer) else x / n


@overload(divide, strict=False)
def _divide(x: Any, n: Any) -> Any:
    if isinstance(x, types.Complex):
        return lambda x, n: complex(x.real / n, x.imag / n)
    if isinstance(x, types.Integer):
        return lambda x, n: x
    return lambda x, n: x / n


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], cgutils.voidptr_t)
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, i32(1), i32(3), i32(1)])  # for writing, keep in all caches, data
        return context.get_dummy_value()

    return types.void(types.uintp), emit


@inlined
def prefetch_row(table: Any, row: Any) -> None:
    """Ask for a row of a C-contiguous table ahead of its use: random rows are out of reach of the hardware's prefetcher."""
    if _INTERPRETED:
        return
    width = table.shape[1] * table.itemsize
    start = np.uintp(table.ctypes.data) + np.uintp(row) * np.uintp(width)
    for line in range(0, width, 64):
        _prefetch(np.uintp(start + np.uintp(line)))  # type: ignore[call-arg]  # numba passes the context
