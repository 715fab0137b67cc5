"""What the optimizers share: modes against eager loops, bits on every backend and for any threads, rounding, layouts, errors."""

import itertools

import _cases
import _eager
import numpy as np
import pytest
from _runs import ROWS, Run, gradients, rates, summed
from _tolerance import assert_bits, native

DECAYS = ("l2", "decoupled", "decoupled_lazy")
MOMENTS = ("masked", "decayed", "exact")
EAGER = {"adam": _eager.Adam, "adagrad": _eager.Adagrad, "sgd": _eager.SGD}


def modes():
    """(optimizer, options): every combination of modes."""
    decays = [{"weight_decay_mode": mode, "weight_decay": 0.3} for mode in DECAYS]
    for decay, rowwise in itertools.product(decays, (False, True)):
        yield "adagrad", decay | {"rowwise": rowwise, "lr_decay": 0.1}
        for moments, correction, amsgrad in itertools.product(MOMENTS, ("global", "row"), (False, True)):
            more = {"moments": moments, "bias_correction": correction, "amsgrad": amsgrad, "rowwise": rowwise}
            yield "adam", decay | more | {"betas": (0.8, 0.97)}
    for decay, moments, momentum in itertools.product(decays, MOMENTS, ({}, {"dampening": 0.3}, {"nesterov": True})):
        yield "sgd", decay | {"moments": moments, "momentum": 0.7} | momentum
    yield from (("sgd", decay) for decay in decays)


def name(case):
    kind, options = case
    return "-".join([kind, *(f"{v}" if isinstance(v, str) else k for k, v in options.items() if v)])


EVERY_MODE = pytest.mark.parametrize(("kind", "options"), [pytest.param(*case, id=name(case)) for case in modes()])


def start(seed=0, width=3, dtype="float64"):
    return np.random.default_rng(seed).standard_normal((ROWS, width)).astype(_cases.dtype_of(dtype))


def train(run, steps, width=3, dtype="float64", flush_at=()):
    for t, (gradient, lr) in enumerate(zip(gradients(1, steps, width, dtype), rates(steps), strict=True), 1):
        run.step(*gradient, lr)
        if t in flush_at:
            run.flush()
    run.flush()
    return run


@EVERY_MODE
def test_lazy_is_eager(backend, kind, options):
    """After a flush every array is as if each step had been done on all rows at once; a flush in between changes nothing."""
    eager = EAGER[kind](start(), **options)
    for gradient, lr in zip(gradients(1, 40, 3), rates(40), strict=True):
        eager.step(summed(*gradient), lr)
    for flush_at in ((), (13, 14, 27)):
        run = train(Run(kind, start(), "float64", backend, **options), 40, flush_at=flush_at)
        np.testing.assert_allclose(run.param, eager.param, rtol=1e-10, atol=1e-12)
        expected = {
            "exp_avg": "m",
            "exp_avg_sq": "v",
            "max_exp_avg_sq": "largest",
            "state_sum": "total",
            "momentum_buffer": "buffer",
        }
        for array in (run.moments | run.arrays).keys() & expected.keys():
            want = getattr(eager, expected[array])
            np.testing.assert_allclose((run.moments | run.arrays)[array].reshape(want.shape), want, rtol=1e-10, atol=1e-14)
        if "row_step" in run.arrays:
            assert run.arrays["row_step"].tolist() == eager.updates
        if "last_step" in run.arrays:
            assert run.arrays["last_step"].tolist() == [40] * ROWS


# (param, states, rounding): each pair is one kernel to compile; bfloat16 and float16 share theirs.
DTYPES = [
    ("float32", "float32", {}),
    ("bfloat16", "bfloat16", {"rounding": "stochastic", "seed": 5}),
]
FEW = [("float64", "float64", {}), ("float16", "float16", {}), ("float16", "float16", {"rounding": "stochastic", "seed": -1})]


def bits_on_both(both_backends, kind, options, dtypes, width=5):
    dtype, state, rounding = dtypes
    one, two = (
        train(Run(kind, start(2, width, dtype), state, backend, rounding, **options), 20, width, dtype, flush_at=(9,))
        for backend in both_backends
    )
    for array, want in two.everything().items():
        assert_bits(one.everything()[array], want)
    before = {array: a.copy() for array, a in one.everything().items()}
    one.flush()  # nothing is left to do
    for array, want in before.items():
        assert_bits(one.everything()[array], want)


@EVERY_MODE
@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: d[0])
def test_backends_agree_to_the_bit(both_backends, kind, options, dtypes):
    bits_on_both(both_backends, kind, options, dtypes)


ALL_AT_ONCE = [
    (
        "adam",
        {
            "weight_decay": 0.2,
            "weight_decay_mode": "decoupled_lazy",
            "moments": "exact",
            "bias_correction": "row",
            "amsgrad": True,
            "maximize": True,
        },
    ),
    ("adam", {"rowwise": True, "moments": "decayed", "weight_decay": 0.1}),
    ("adagrad", {"weight_decay": 0.2, "weight_decay_mode": "decoupled_lazy", "maximize": True}),
    ("sgd", {"weight_decay": 0.2, "weight_decay_mode": "decoupled_lazy", "moments": "exact", "momentum": 0.9, "maximize": True}),
]
SOME_MODES = pytest.mark.parametrize(("kind", "options"), ALL_AT_ONCE, ids=["adam", "rowwise adam", "adagrad", "sgd"])


@SOME_MODES
@pytest.mark.parametrize("dtypes", FEW, ids=["float64", "float16", "float16 stochastic"])
@pytest.mark.parametrize("width", [1, 70])
def test_backends_agree_on_other_dtypes_and_widths(both_backends, kind, options, dtypes, width):
    bits_on_both(both_backends, kind, options, dtypes, width)


@SOME_MODES
def test_same_bits_for_1_2_and_3_threads(threads, kind, options):
    """With long gaps, one hot row of thousands of entries, and a flush of a table large enough to be shared out."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    param = rng.standard_normal((9000, 8)).astype("f4")
    steps = []
    for _ in range(3):
        indices = rng.integers(0, 9000, 12_000)
        indices[:5000] = 17
        steps.append((indices, rng.standard_normal((12_000, 8)).astype("f4")))
    results = []
    for n in (1, 2, 3):
        threads(n)
        run = Run(kind, param, backend="numba", **options)
        for gradient in steps:
            run.step(*gradient, 0.1)
        run.flush()
        results.append(run.everything())
    for got in results[1:]:
        for array, want in results[0].items():
            assert_bits(got[array], want)


@SOME_MODES
def test_rows_that_are_not_touched_stay_until_the_flush(backend, kind, options):
    run = Run(kind, start(), "float64", backend, **options)
    rng = np.random.default_rng(0)
    run.step(np.arange(ROWS), rng.standard_normal((ROWS, 3)), 0.1)
    before = {array: a.copy() for array, a in run.everything().items() if array != "history"}
    for _ in range(3):
        run.step(np.array([2, 5, 2]), rng.standard_normal((3, 3)), 0.1)
    for array, want in before.items():
        still = np.delete(np.arange(ROWS), [2, 5])
        assert_bits(run.everything()[array][still], want[still])
        assert not np.array_equal(run.everything()[array][[2, 5]], want[[2, 5]])


@SOME_MODES
def test_a_gradient_without_entries_writes_its_row_of_the_history(backend, kind, options):
    run = Run(kind, start(), "float64", backend, **options)
    run.step(np.array([1]), np.ones((1, 3)), 0.5)
    before = {array: a.copy() for array, a in run.everything().items() if array != "history"}
    run.step(np.empty(0, int), np.empty((0, 3)), 0.25)
    for array, want in before.items():
        assert_bits(run.everything()[array], want)
    if "history" in run.arrays:
        decayed = np.log1p(-0.5 * 0.2)
        expected = [[0.5, decayed, 0.5], [0.25, decayed + np.log1p(-0.25 * 0.2), 0.5], [0, 0, 0]]
        np.testing.assert_allclose(run.arrays["history"][:3], expected, rtol=1e-15)


@SOME_MODES
@pytest.mark.parametrize("dense", [(), (3,), (2, 2)])
@pytest.mark.parametrize("layout", ["C", "strided", "fortran", "big-endian"])
def test_any_layout_and_any_number_of_dimensions(backend, kind, options, dense, layout):
    """Two sparse dimensions; arrays laid out in any way are updated as contiguous ones are, stochastic rounding included."""
    dims, n = (3, 4), 12
    rng = np.random.default_rng(0)
    param = rng.standard_normal((*dims, *dense)).astype(np.float16)
    rounding = {"rounding": "stochastic", "seed": 3}
    results = []
    for lay in ("C", layout):
        run = Run(kind, param, "float16", backend, rounding, dims=dims, **options)
        if lay != "C":
            for group in (run.moments, run.arrays):
                for array in group.keys() - {"history"}:
                    group[array] = _cases.LAYOUTS[lay](group[array])
            run.param = _cases.LAYOUTS[lay](run.param)
        for step in range(5):
            fresh = np.random.default_rng(step)
            run.step(
                np.stack(np.unravel_index(fresh.integers(0, n, 4), dims)),
                fresh.standard_normal((4, *dense)).astype(np.float16),
                0.1,
            )
        run.flush()
        results.append({array: native(a) for array, a in run.everything().items()})
    for array, want in results[0].items():
        assert_bits(results[1][array], want)


def test_states_may_be_memory_maps(backend, tmp_path):
    kind, options = ALL_AT_ONCE[0]
    plain, mapped = (Run(kind, start(dtype="float32"), "float32", backend, **options) for _ in range(2))
    for group in (mapped.moments, mapped.arrays):
        for array, a in group.items():
            group[array] = np.memmap(tmp_path / array, a.dtype, "w+", shape=a.shape)
    for run in (plain, mapped):
        train(run, 5, dtype="float32")
    for array, want in plain.everything().items():
        assert_bits(np.asarray(mapped.everything()[array]), want)


# Bad input: see test_bad_input.py for what all modes share.
def bad(kind, options, change, error, match):
    return pytest.param(kind, options, change, error, match, id=f"{kind} {match}")


LAZY = {"weight_decay": 0.1, "weight_decay_mode": "decoupled_lazy"}
BAD = [
    bad(
        "adam",
        {},
        {"weight_decay_mode": "l1"},
        ValueError,
        "weight_decay_mode must be one of 'l2', 'decoupled', 'decoupled_lazy'",
    ),
    bad("adam", {}, {"moments": "lazy"}, ValueError, "moments must be one of 'masked', 'decayed', 'exact', got 'lazy'"),
    bad("adam", {}, {"bias_correction": None}, ValueError, "bias_correction must be one of 'global', 'row', got None"),
    bad("adam", {}, {"rounding": "up"}, ValueError, "rounding must be one of 'nearest', 'stochastic', got 'up'"),
    bad("adam", {}, {"rounding": "stochastic"}, ValueError, 'seed must be given with rounding="stochastic"'),
    bad("adam", {}, {"seed": 1}, ValueError, 'seed is used only with rounding="stochastic"; expected None, got int'),
    bad("adam", {}, {"rounding": "stochastic", "seed": 1.5}, TypeError, "seed must be an int, got float"),
    bad("adam", {}, {"last_step": np.zeros(ROWS, int)}, ValueError, "last_step is used only with"),
    bad("adam", {}, {"history": np.zeros((9, 3))}, ValueError, "history is used only with"),
    bad("adam", {}, {"row_step": np.zeros(ROWS, int)}, ValueError, 'row_step is used only with bias_correction="row"'),
    bad("adam", {"bias_correction": "row"}, {"row_step": None}, ValueError, 'row_step must be given with bias_correction="row"'),
    bad("adam", {"moments": "decayed"}, {"last_step": None}, ValueError, 'last_step must be given with .* or moments="decayed"'),
    bad("adam", {"moments": "exact"}, {"history": None}, ValueError, 'history must be given with .* or moments="exact"'),
    bad("adam", LAZY, {"weight_decay": 10.0}, ValueError, r"lr \* weight_decay must be < 1 .*, got 0.1 \* 10.0"),
    bad("adam", {"weight_decay_mode": "decoupled"}, {"weight_decay": 10.0}, ValueError, r"lr \* weight_decay must be < 1"),
    bad("adam", LAZY, {"history": np.zeros((0, 3))}, ValueError, r"history is too small: step 1 .*\(0, 3\)"),
    bad("adam", LAZY, {"history": np.zeros((9, 2))}, ValueError, r"history must have shape \(capacity, 3\), got \(9, 2\)"),
    bad("adam", LAZY, {"history": np.zeros((9, 3), "f4")}, TypeError, "history must have dtype float64, got float32"),
    bad("adam", LAZY, {"history": np.zeros((3, 9)).T}, ValueError, "history must be C-contiguous"),
    bad("adam", LAZY, {"last_step": np.zeros(ROWS, "i4")}, TypeError, "last_step must have dtype int64, got int32"),
    bad("adam", LAZY, {"last_step": np.zeros(ROWS - 1, int)}, ValueError, r"last_step must have the shape \(8,\) .* got \(7,\)"),
    bad("adam", {"rowwise": True}, {"rowwise": False}, ValueError, r"exp_avg_sq must have param's shape \(8, 3\), got \(8,\)"),
    bad("adam", {}, {"rowwise": True}, ValueError, r"exp_avg_sq must have the shape \(8,\) .* got \(8, 3\)"),
    bad(
        "adam",
        {},
        {"max_exp_avg_sq": np.zeros((ROWS, 3), "f4")},
        TypeError,
        "max_exp_avg_sq must have dtype float64 for a float64 param, got float32",
    ),
    bad("adagrad", LAZY, {"history": None}, ValueError, "history must be given with"),
    bad("adagrad", {}, {"lr_decay": -1.0}, ValueError, "lr_decay must be finite and >= 0, got -1.0"),
    bad("sgd", {}, {"momentum": 1.0}, ValueError, "momentum must be finite and >= 0 and < 1, got 1.0"),
    bad("sgd", {}, {"momentum": 0.5}, ValueError, "momentum_buffer must be given with momentum > 0"),
    bad("sgd", {"momentum": 0.5}, {"momentum": 0.0}, ValueError, "momentum_buffer is used only with momentum > 0"),
    bad("sgd", {}, {"nesterov": True}, ValueError, "nesterov needs momentum > 0 and dampening 0, got momentum 0.0"),
    bad("sgd", {"momentum": 0.5}, {"nesterov": True, "dampening": 0.1}, ValueError, "nesterov needs .* dampening 0.1"),
    *(
        bad(kind, options, {"indices": np.array([1, 8])}, IndexError, "= 8 is out of range for dimension 0 of size 8")
        for kind, options in ALL_AT_ONCE
    ),
]


@pytest.mark.parametrize(("kind", "options", "change", "error", "match"), BAD)
def test_bad_calls_write_nothing(backend, kind, options, change, error, match):
    run = Run(kind, start(), "float64", backend, **options)
    for a in (*run.moments.values(), *run.arrays.values()):
        a += 1 if a.dtype == np.float64 else 0
    arguments = {"indices": np.array([1, 2]), "values": np.ones((2, 3)), "lr": 0.1} | change
    before = {array: a.copy() for array, a in run.everything().items()}
    with pytest.raises(error, match=match):
        run.step(**arguments)
    for array, want in before.items():
        assert_bits(run.everything()[array], want)


@SOME_MODES
def test_outputs_must_be_writeable_and_apart(backend, kind, options):
    names = list(Run(kind, start(), "float64", backend, **options).everything())
    for spoiled in names:
        run = Run(kind, start(), "float64", backend, **options)
        run.everything()[spoiled].flags.writeable = False
        with pytest.raises(ValueError, match=f"{spoiled} is updated in place and must be writeable"):
            run.step(np.array([1]), np.ones((1, 3)), 0.1)
    for one, other in itertools.combinations(names, 2):
        run = Run(kind, start(), "float64", backend, steps=ROWS, **options)
        a, b = run.everything()[one], run.everything()[other]
        if a.shape != b.shape or a.dtype != b.dtype:
            continue
        group = run.moments if other in run.moments else run.arrays
        group[other] = a
        with pytest.raises(ValueError, match=f"{one} and {other} must not share memory"):
            run.step(np.array([1]), np.ones((1, 3)), 0.1)


def test_a_flush_checks_its_arrays(backend):
    run = Run("adam", start(), "float64", backend, **ALL_AT_ONCE[0][1])
    for change, error, match in (
        ({"last_step": np.zeros(3, int)}, ValueError, r"last_step must have the shape .* \(8, 3\), got \(3,\)"),
        ({"history": np.zeros((1, 3))}, ValueError, "history is too small: step 2"),
        ({"row_step": None}, ValueError, "row_step must be given"),
    ):
        kept = dict(run.arrays)
        run.arrays |= change
        with pytest.raises(error, match=match):
            run.flush(2)
        run.arrays = kept
    with pytest.raises(ValueError, match="step must be at least 0"):
        run.flush(-1)
    run.flush(0)
    assert_bits(run.param, start())


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_flush_of_nothing_lazy_does_nothing(backend, kind):
    run = Run(kind, start(), "float64", backend)
    run.step(np.array([1]), np.ones((1, 3)), 0.1)
    before = run.param.copy()
    run.flush()
    assert_bits(run.param, before)
