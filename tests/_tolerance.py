"""One table of tolerances, and the asserts that use it: dtype and shape first, indices exactly, sums to the bit."""

import ml_dtypes
import numpy as np

# Relative, against peers that add in another order or another precision. Everything else is compared bit by bit.
RELATIVE = {
    "float16": 2**-10,
    "bfloat16": 2**-7,
    "float32": 4 * 2**-23,
    "float64": 8 * 2**-52,
    "complex64": 4 * 2**-23,
    "complex128": 8 * 2**-52,
}


def to_numpy(x):
    """NumPy's view of a NumPy array, a torch tensor (bfloat16 too) or any DLPack exporter."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):
        x = x.detach()
        if str(x.dtype) == "torch.bfloat16":
            import torch

            return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()
    return np.from_dlpack(x)


def native(x):
    """A contiguous copy in this machine's byte order: what a layout means."""
    return np.ascontiguousarray(x.astype(x.dtype.newbyteorder("=")))


def _parts(x):
    """Real parts as a flat array, so that one half of a complex number may be NaN without the other."""
    x = np.ascontiguousarray(x)
    return x.view(x.real.dtype).ravel() if x.dtype.kind == "c" else x.ravel()


def assert_like(actual, expected):
    """Same dtype, same shape."""
    actual, expected = to_numpy(actual), to_numpy(expected)
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    return _parts(actual), _parts(expected)


def assert_bits(actual, expected):
    """The same bits; every NaN counts as the same NaN."""
    actual, expected = assert_like(actual, expected)
    unsigned = f"u{actual.dtype.itemsize}"
    same = actual.view(unsigned) == expected.view(unsigned)
    if actual.dtype.kind not in "iub":
        same |= np.isnan(actual) & np.isnan(expected)
    wrong = np.flatnonzero(~same)
    assert not wrong.size, (
        f"{wrong.size} of {same.size} differ; at {wrong[0]}: {actual[wrong[0]]!r}, expected {expected[wrong[0]]!r}"
    )


def assert_equal(actual, expected):
    """Equal values: 0.0 equals -0.0, NaN equals NaN."""
    actual, expected = assert_like(actual, expected)
    if actual.dtype == ml_dtypes.bfloat16:  # NumPy's assert does not know its NaN
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


def assert_close(actual, expected, ulps=1, atol=0.0):
    """Within the table's relative tolerance, ``ulps`` times over."""
    name = to_numpy(expected).dtype.name
    actual, expected = assert_like(actual, expected)
    if name not in RELATIVE:
        np.testing.assert_array_equal(actual, expected)
        return
    kind = np.float64 if actual.dtype.kind != "c" else np.complex128
    np.testing.assert_allclose(actual.astype(kind), expected.astype(kind), rtol=RELATIVE[name] * ulps, atol=atol)


def assert_coo(coo, indices, values, shape, compare=assert_bits):
    """A COO with these indices (exact), these values and this shape."""
    assert tuple(coo.shape) == tuple(shape)
    assert all(type(n) is int for n in coo.shape), f"shape should hold Python ints, got {coo.shape!r}"
    assert_bits(coo.indices, indices)
    compare(coo.values, values)
