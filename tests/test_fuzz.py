"""Whatever is given to the public functions: the right answer, or an error that is documented and leaves everything as it was.

``make fuzz`` runs these for as long as asked, with another seed each time; CI runs them for a few examples.
"""

import hypothesis.strategies as st
import numpy as np
import pytest
from _cases import DTYPES, LAYOUTS, REALS, numbers
from _oracles import adam as adam_oracle
from _oracles import coalesce as coalesce_oracle
from _oracles import topk as topk_oracle
from _tolerance import assert_bits, native
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import sparsekit


class Refusal(Exception):
    """What a hostile producer raises: it reaches the caller."""


DOCUMENTED = (TypeError, ValueError, IndexError, BufferError, sparsekit.BackendUnavailableError, Refusal)
_STRANGE_DTYPES = ["O", "M8[s]", "m8[ns]", "U3", "S2", "f4,i4", "g", "V4"]
_SIZES = st.sampled_from([0, 1, 2, 3, 5, 33, 70])


class Hostile:
    """Claims to be an array of some library."""

    def __init__(self, device, capsule):
        self._device, self._capsule = device, capsule

    def __dlpack_device__(self):
        if isinstance(self._device, Exception):
            raise self._device
        return self._device

    def __dlpack__(self, **options):
        if isinstance(self._capsule, Exception):
            raise self._capsule
        return self._capsule


class Exporter:
    """A sound one, of a library that nobody knows."""

    def __init__(self, array):
        self._array = array

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


@st.composite
def dtypes(draw):
    return draw(st.sampled_from(DTYPES)) if draw(st.integers(0, 9)) else draw(st.sampled_from(_STRANGE_DTYPES))


@st.composite
def arrays(draw, shape=None, dtype=None):
    """Any dtype, shape, layout and content."""
    shape = tuple(draw(st.lists(_SIZES, max_size=3))) if shape is None else shape
    dtype = draw(dtypes()) if dtype is None else dtype
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype in _STRANGE_DTYPES:
        return np.zeros(shape, dtype)
    x = numbers(rng, shape, dtype, special=draw(st.booleans()))
    if shape and draw(st.booleans()):
        x = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x)
    return x


@st.composite
def things(draw, like):
    """Mostly what the strategy gives, now and then something else altogether."""
    if draw(st.integers(0, 11)):
        return draw(like)
    devices = st.sampled_from([(1, 0), (7, 0), (99, 0), (1,), "cpu", None, Refusal("no device")])
    capsules = st.sampled_from([None, 7, "capsule", BufferError("no"), Refusal("no"), object()])
    hostile = st.builds(Hostile, devices, capsules)
    simple = st.sampled_from([None, "", "abc", -3, 0, 1, {}, [[1], [2, 3]]])
    return draw(st.one_of(hostile, simple, arrays()))


@st.composite
def indices(draw, ndim, nnz, dims):
    """Mostly in range."""
    kind = draw(st.sampled_from(["int8", "int32", "int64", "uint8", "uint64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = np.stack([rng.integers(0, max(1, min(d, 100)), nnz) for d in dims]) if ndim else np.zeros((0, nnz), np.int64)
    x = x.astype(kind)
    if x.size and not draw(st.integers(0, 3)):
        info = np.iinfo(kind)
        x.flat[draw(st.integers(0, x.size - 1))] = draw(st.sampled_from([info.min, info.max, info.max - 1, 0]))
    if nnz and ndim and draw(st.booleans()):
        x = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x)
    return x


def snapshot(things):
    return [x.tobytes() if isinstance(x, np.ndarray) and x.dtype != object else None for x in things]


def outcome(call, *inputs):
    """The result, or None where it raised what is documented; the inputs are as they were."""
    before = snapshot(inputs)
    try:
        result = call()
    except DOCUMENTED:
        result = None
    assert snapshot(inputs) == before, "an input was written to"
    return result


@st.composite
def coalesce_calls(draw):
    dims = tuple(draw(st.lists(st.sampled_from([0, 1, 3, 50, 2**40, 2**62]), max_size=4)))
    dense, nnz = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 5]), max_size=2))), draw(_SIZES)
    nnz = 0 if 0 in dims else nnz
    shape = draw(things(st.just((*dims, *dense))))
    values = draw(things(arrays((nnz, *dense) if draw(st.integers(0, 9)) else None)))
    reduce = draw(st.sampled_from(["sum", "mean", "min", "max", "prod", "median", None]))
    return draw(things(indices(len(dims), nnz, dims))), values, shape, reduce


@given(coalesce_calls())
def test_coalesce(backend, call):
    index, values, shape, reduce = call
    got = outcome(
        lambda: sparsekit.coalesce(index, values, shape, reduce=reduce, return_inverse=True, return_counts=True, backend=backend),
        index,
        values,
    )
    if got is None or not (isinstance(index, np.ndarray) and isinstance(values, np.ndarray)):
        return
    coo, inverse, counts = got
    want = coalesce_oracle(native(index), native(values), reduce)
    assert_bits(coo.indices, want[0].astype(native(index).dtype))
    if reduce in ("sum", "mean"):
        assert_bits(coo.values, want[1])
    elif reduce in ("min", "max"):  # of -0.0 and 0.0 either
        zero = coo.values.dtype.type(0)
        assert_bits(coo.values + zero, want[1] + zero)
    assert np.array_equal(inverse, want[2]) and np.array_equal(counts, want[3])


@st.composite
def topk_calls(draw):
    dtype = draw(dtypes())
    one = things(arrays(dtype=dtype))
    x = draw(one) if draw(st.booleans()) else draw(st.lists(one, max_size=3))
    return x, draw(st.one_of(st.integers(-1, 80), st.sampled_from([None, 1.5, "3", 2**70]))), draw(st.booleans())


@given(topk_calls())
def test_topk(backend, call):
    x, k, as_mask = call
    parts = x if isinstance(x, list) else [x]
    got = outcome(lambda: (sparsekit.topk_mask if as_mask else sparsekit.topk)(x, k, backend=backend), *parts)
    if got is None or not all(isinstance(part, np.ndarray) for part in parts):
        return
    want = topk_oracle([native(part) for part in parts], k)
    for part, result, at in zip(parts, got if isinstance(x, list) else [got], want, strict=True):
        if as_mask:
            assert np.flatnonzero(result).tolist() == sorted(at)
        else:
            assert_bits(result.values, native(part).ravel()[np.sort(np.array(at, int))])


@st.composite
def adam_calls(draw):
    rows, dense = draw(st.sampled_from([1, 3, 50])), tuple(draw(st.lists(st.sampled_from([1, 2, 5]), max_size=2)))
    dtype, nnz = draw(st.sampled_from(REALS)), draw(_SIZES)
    state = "float64" if dtype == "float64" else "float32"
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tables = [np.abs(numbers(rng, (rows, *dense), d)) for d in (dtype, state, state)]
    if not draw(st.integers(0, 9)):
        tables[draw(st.integers(0, 2))] = draw(things(arrays()))
    values = draw(things(arrays((nnz, *dense), dtype if draw(st.integers(0, 9)) else None)))
    options = {"step": draw(st.sampled_from([1, 2, 1000, 1, 5, 0, -1, 1.5, None, 2**40]))}
    for name, given_ in {
        "lr": [0.1, 0.0, -1.0, float("nan"), "x"],
        "betas": [(0.9, 0.999), (0.0, 0.0), (1.0, 0.5), (0.5,), None],
        "eps": [1e-8, 0.0, -1.0],
        "weight_decay": [0.0, 0.1, -0.1],
        "maximize": [True, False],
    }.items():
        if draw(st.booleans()):
            options[name] = draw(st.sampled_from(given_[:2] if draw(st.integers(0, 4)) else given_))
    return tables, draw(things(indices(1, nnz, (rows,)))), values, options


@given(adam_calls())
def test_adam(backend, call):
    tables, index, values, options = call
    before = [t.copy() if isinstance(t, np.ndarray) else t for t in tables]
    old = snapshot(tables)
    done = outcome(lambda: sparsekit.sparse_adam_step(*tables, index, values, backend=backend, **options) or True, index, values)
    if done is None:
        assert snapshot(tables) == old, "an error after a write"
    elif isinstance(index, np.ndarray) and isinstance(values, np.ndarray):
        for got, want in zip(tables, adam_oracle(*before, native(index)[0:1], native(values), **options), strict=True):
            assert_bits(got, want)


@given(arrays((7, 3), "float32"))
def test_sound_exporters_are_arrays(backend, x):
    """By DLPack from a library that nobody knows."""
    x = native(x)
    coo = sparsekit.topk(Exporter(x), 5, backend=backend)
    assert_bits(coo.values, x.ravel()[np.sort(np.array(topk_oracle([x], 5)[0], int))])


class Training(RuleBasedStateMachine):
    """A table that is trained, checkpointed and resumed, while gradients pile up; next to it the same by plain loops."""

    backend = "numba"
    ROWS, WIDTH = 6, 3

    @initialize(seed=st.integers(0, 2**32), dtype=st.sampled_from(["float32", "float64", "float16"]))
    def start(self, seed, dtype):
        self.rng = np.random.default_rng(seed)
        state = "float64" if dtype == "float64" else "float32"
        self.tables = [self.rng.random((self.ROWS, self.WIDTH)).astype(d) for d in (dtype, state, state)]
        self.expected = [t.copy() for t in self.tables]
        self.dtype, self.steps, self.saved, self.pile = np.dtype(dtype), 0, None, None
        self.entries = [np.zeros((1, 0), np.int64), np.zeros((0, self.WIDTH), dtype)]

    def gradient(self, n):
        return self.rng.integers(0, self.ROWS, n), self.rng.standard_normal((n, self.WIDTH)).astype(self.dtype)

    @rule(n=st.integers(0, 40), lr=st.floats(0, 1), decay=st.sampled_from([0.0, 0.1]))
    def step(self, n, lr, decay):
        index, values = self.gradient(n)
        self.steps += 1
        options = {"step": self.steps, "lr": lr, "weight_decay": decay}
        sparsekit.sparse_adam_step(*self.tables, index, values, backend=self.backend, **options)
        self.expected = list(adam_oracle(*self.expected, index, values, **options))

    @rule(n=st.integers(1, 20), row=st.sampled_from([-1, ROWS, 2**40]))
    def a_step_that_fails(self, n, row):
        index, values = self.gradient(n)
        index[n // 2] = row
        with pytest.raises(IndexError):
            sparsekit.sparse_adam_step(*self.tables, index, values, step=self.steps + 1, backend=self.backend)

    @rule()
    def save(self):
        self.saved = [t.copy() for t in self.tables], [t.copy() for t in self.expected], self.steps

    @rule()
    def resume(self):
        if self.saved:
            tables, expected, self.steps = self.saved
            self.tables, self.expected = [t.copy() for t in tables], [t.copy() for t in expected]

    @rule(n=st.integers(0, 40))
    def accumulate(self, n):
        index, values = self.gradient(n)
        coo = sparsekit.coalesce(index, values, (self.ROWS, self.WIDTH), backend=self.backend)
        self.pile = coo if self.pile is None else sparsekit.add(self.pile, coo, backend=self.backend)
        index, values, _, _ = coalesce_oracle(index, values)
        self.entries = [np.concatenate([self.entries[0], index], axis=1), np.concatenate([self.entries[1], values])]
        self.entries = list(coalesce_oracle(*self.entries)[:2])

    @rule(k=st.integers(0, 18))
    def apply_the_largest(self, k):
        """The k largest of what has piled up; the rest stays."""
        if self.pile is None:
            return
        k = min(k, self.pile.values.size)
        mask = sparsekit.topk_mask(self.pile.values, k, backend=self.backend)
        assert np.flatnonzero(mask).tolist() == sorted(topk_oracle([self.entries[1]], k)[0])
        values = np.where(mask, self.pile.values, 0).astype(self.dtype)
        self.steps += 1
        sparsekit.sparse_adam_step(*self.tables, self.pile.indices, values, step=self.steps, backend=self.backend)
        self.expected = list(adam_oracle(*self.expected, self.entries[0], values, step=self.steps))

    @invariant()
    def is_what_loops_give(self):
        if not hasattr(self, "tables"):
            return
        for got, want in zip(self.tables, self.expected, strict=True):
            assert_bits(got, want)
        if self.pile is not None:
            assert_bits(self.pile.indices, self.entries[0])
            assert_bits(self.pile.values, self.entries[1])
            assert sparsekit.is_coalesced(self.pile.indices, backend=self.backend)


def test_training(backend):
    run_state_machine_as_test(type("Training", (Training,), {"backend": backend}))
