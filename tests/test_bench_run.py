"""The measurements of ``python -m bench run``: their inputs, oracles, floors and tables, and one tiny run from end to end."""

import dataclasses
import importlib.util
import json
import re
from functools import partial

import numpy as np
import pytest

_ONLY_CHECKOUT = "bench is run from the checkout and never installed"
_main = pytest.importorskip("bench.__main__", reason=_ONLY_CHECKOUT)

from bench import _data, _results, _sums, _targets  # noqa: E402 - after the skip
from bench._case import FAILED, MISSING, OK, SKIPPED, WRONG, Case, Contender, Prepared, SkippedError  # noqa: E402
from bench._memory import Copy, peak_extra  # noqa: E402
from bench._operations import OPERATIONS  # noqa: E402
from bench._results import Row  # noqa: E402
from bench._worker import Worker, load, save  # noqa: E402

CASES = [case for operation in OPERATIONS.values() for case in operation.cases]


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


# Cases and their inputs


def test_cases_have_names_of_their_own_and_series_differ_in_size():
    assert len({case.key for case in CASES}) == len(CASES)
    series = {}
    for case in CASES:
        assert OPERATIONS[case.operation].name == case.operation
        series.setdefault((case.operation, case.series), []).append(case.n)
    for (_, name), sizes in series.items():
        assert not name or len(set(sizes)) == len(sizes)
    assert {case.operation for case in CASES if case.quick} == set(OPERATIONS)


def test_every_target_has_cases_and_contenders():
    for target in _targets.TARGETS:
        assert [case.key for case in CASES if re.fullmatch(target.cases, case.key)], target.text
    everybody = {contender.name for operation in OPERATIONS.values() for contender in operation.contenders}
    assert {"sparsekit", "torch", "numpy", "scipy sum_duplicates", "sparsekit, 1 thread", "sparsekit, check=False"} <= everybody


@pytest.mark.parametrize("shape", [(1_000_000, 1_000_000), (100, 100, 100), (30, 50)])
def test_uniform_pairs_hold_every_coordinate_twice(shape):
    inputs = _data.uniform_pairs(1000, shape)
    keys, counts = np.unique(_sums.keys(inputs), return_counts=True)
    assert len(keys) == 500
    assert (counts == 2).all()
    assert inputs["indices"].shape == (len(shape), 1000)
    assert inputs["values"].dtype == np.float32
    assert inputs["values"].all()
    assert (np.diff(_sums.keys(inputs)) < 0).any(), "not shuffled"
    again = _data.uniform_pairs(1000, shape)
    assert all(np.array_equal(inputs[name], again[name]) for name in inputs)


def test_unique_sorted_and_one_index():
    shape = (1000, 1000)
    shuffled, ordered, hot = (
        _sums.keys(inputs)
        for inputs in (
            _data.unique(500, shape, ordered=False),
            _data.unique(500, shape, ordered=True),
            _data.hot(500, shape),
        )
    )
    assert len(set(shuffled.tolist())) == 500
    assert (np.diff(shuffled) < 0).any()
    assert (np.diff(ordered) > 0).all()
    assert len(hot) == 500
    assert len(set(hot.tolist())) == 1


def test_ids_follow_their_distributions(monkeypatch):
    monkeypatch.setattr(_data, "_tokens", lambda: np.array([0, 3, 0, 1500]))
    rng = np.random.default_rng(0)
    uniform, zipf, tokens = (_data.ids(rng, name, 20_000, 1000) for name in ("uniform", "Zipf", "tokens"))
    for ids in (uniform, zipf, tokens):
        assert ids.shape == (20_000,)
        assert 0 <= ids.min() <= ids.max() < 1000
    weights = np.arange(1, 1001) ** -1.2
    expected = 20_000 * weights / weights.sum()
    counts = np.sort(np.bincount(zipf, minlength=1000))[::-1]
    np.testing.assert_allclose(counts[:5], expected[:5], rtol=0.2)
    assert np.bincount(uniform, minlength=1000).max() < 60
    assert tokens[:6].tolist() == [0, 3, 0, 500, 0, 3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64"])
def test_values_are_stored_and_widened_exactly(dtype):
    x = _data.values(np.random.default_rng(0), (1000,), dtype)
    assert x.dtype == (np.uint16 if dtype == "bfloat16" else dtype)
    wide = _data.widen(x, dtype)
    assert wide.all()
    if dtype == "bfloat16":
        assert _data.widen(np.array([0x3F80, 0xC040, 0x7F80], np.uint16), dtype).tolist() == [1.0, -3.0, np.inf]
    else:
        assert np.array_equal(wide, x)


def test_shapes_of_resnet50():
    shapes = _data.resnet50_shapes()
    assert len(shapes) == 161
    assert sum(int(np.prod(shape)) for shape in shapes) == 25_557_032
    assert shapes[0] == (64, 3, 7, 7)
    assert shapes[-2:] == [(1000, 2048), (1000,)]


@needs("torch", "sklearn")
def test_gradients_of_a_network_are_real():
    gradients = _data.network_gradients(16, steps=3)
    assert sum(x.size for x in gradients.values()) == 16**2 + 76 * 16 + 10
    assert all(x.any() for x in gradients.values())


@needs("skfem")
def test_stiffness_triplets_have_duplicates_and_rows_that_sum_to_zero():
    inputs = _data.stiffness("P1", 2)
    keys = _sums.keys(inputs)
    assert len(np.unique(keys)) < len(keys) == 9 * 2 * 4**2
    row_sums = np.bincount(inputs["indices"][0], inputs["values"])
    np.testing.assert_allclose(row_sums, 0, atol=1e-12)


# Floors and oracles, by hand


def triplet(indices, values, shape):
    return _data.triplet(np.array(indices), np.array(values, np.float32), shape)


HAND = triplet([[0, 1, 1], [2, 0, 0]], [3, 4, 5], (2, 3))


def examine(operation, inputs, *, n=3, dtype="float32", k=0):
    """The oracle and the floor of a small input."""
    case = Case(operation, "hand", n, dict, dtype=dtype, k=k)
    expected = OPERATIONS[operation].expect(case, inputs)
    return expected, OPERATIONS[operation].floor_bytes(case, inputs, expected)


def test_coalesce_by_hand():
    expected, floor = examine("coalesce", HAND)
    assert expected["indices"].tolist() == [[0, 1], [2, 0]]
    assert expected["values"].tolist() == [3.0, 9.0]
    assert floor == 3 * (2 * 8 + 4) + 2 * (2 * 8 + 4)


def test_topk_by_hand():
    inputs = {"0": np.array([[1, -5], [2, 0]], np.float32), "1": np.array([4, -3, 1], np.float32)}
    expected, floor = examine("topk", inputs, n=7, k=2)
    assert expected["magnitudes"].tolist() == [4.0, 5.0]
    assert floor == 7 * 4 + 2 * (8 + 4)
    expected, floor = examine("topk_mask", inputs, n=7, k=2)
    assert expected["magnitudes"].tolist() == [4.0, 5.0]
    assert floor == 7 * 4 + 7


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_sparse_adam_step_by_hand(dtype, size):
    gradient = _data.narrow(np.array([[1, 2], [3, 4], [5, 6]], np.float32), dtype)
    inputs = _data.triplet(np.array([[7, 2, 7]]), gradient, (10, 2))
    expected, floor = examine("sparse_adam_step", inputs, dtype=dtype)
    assert expected["rows"].tolist() == [2, 7]
    assert floor == 3 * 8 + 3 * 2 * size + 2 * 2 * 2 * (size + 4 + 4)
    rng = np.random.default_rng(1)  # the first moments: the second table
    before = rng.standard_normal((1009, 2), np.float32)[[2, 7]] / 10
    np.testing.assert_allclose(expected["exp_avg"], before + (np.array([[3, 4], [6, 8]]) - before) * 0.1, rtol=1e-6)


# The worker: what is wrong, missing or fails is not timed


def start(operation, inputs, prepare, tmp_path, **options):
    """What a worker makes of a contender on a small input."""
    case = Case(operation, "tiny", len(inputs.get("values", "")), dict, **options)
    save(tmp_path / "inputs", inputs)
    save(tmp_path / "expected", OPERATIONS[operation].expect(case, inputs))
    worker = Worker()
    return worker, worker.start(case, Contender("made up", prepare), tmp_path)


def returning(result):
    """A contender that has its result ready."""
    return lambda case, inputs: Prepared(lambda _: None, lambda _: result(inputs) if callable(result) else result)


RIGHT = {"indices": np.array([[0, 1], [2, 0]]), "values": np.array([3, 9], np.float32)}


def test_a_right_result_is_timed(tmp_path):
    worker, started = start("coalesce", HAND, returning(RIGHT), tmp_path)
    assert started.status == OK
    assert started.warmup_s > 0
    assert started.first_s is None
    times = worker.turn(0.01)
    assert 1 <= len(times) <= 1000
    assert all(0 < t < 1 for t in times)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": np.array([3, 9.001], np.float32)}, "values: 1 of 2 are wrong, the worst [1] = 9.001, expected 9 "),
        ({"values": np.array([np.nan, 9], np.float32)}, "1 of 2 are wrong, the worst [0] = nan"),
        ({"indices": np.array([[0, 1], [2, 1]])}, "indices[:, 1] = [1 1], expected [1 0]"),
        ({"indices": np.array([[1, 0], [0, 2]]), "values": np.array([9, 3], np.float32)}, "indices[:, 0] = [1 0]"),
        ({"indices": HAND["indices"], "values": HAND["values"]}, "expected shape (2, 2), got (2, 3)"),
    ],
)
def test_a_wrong_sum_is_caught(tmp_path, changes, message):
    _, started = start("coalesce", HAND, returning(RIGHT | changes), tmp_path)
    assert started.status == WRONG
    assert message in started.note
    assert started.warmup_s is None


def test_a_sum_that_stagnates_is_caught(tmp_path):
    inputs = _data.triplet(np.zeros((1, 1000), np.int64), np.full(1000, 0x3F80, np.uint16), (1,))
    stagnated = {"indices": np.array([[0]]), "values": np.array([0x4380], np.uint16)}  # 256, where 1000 is right
    _, started = start("coalesce", inputs, returning(stagnated), tmp_path, dtype="bfloat16")
    assert started.status == WRONG
    assert "= 256, expected 1000" in started.note


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([1, 2], None),
        ([2, 1], None),
        ([1, 0], "magnitude 2 is 1.0, expected 4.0"),
        ([1, 1], "expected 2 positions, got 2, 1 of them distinct"),
        ([1, 2, 3], "expected 2 positions, got 3"),
    ],
)
def test_a_wrong_selection_is_caught(tmp_path, positions, message):
    inputs = {"0": np.array([1, -5, 4, 0], np.float32)}
    result = {"positions": np.array(positions)}
    _, started = start("topk", inputs, returning(result), tmp_path, k=2)
    assert started.status == (WRONG if message else OK)
    assert (message or "") in started.note


def test_values_that_are_not_the_input_are_caught(tmp_path):
    result = {"positions": np.array([1]), "values": np.array([5], np.float32)}  # the magnitude, not the entry
    _, started = start("topk", {"0": np.array([1, -5], np.float32)}, returning(result), tmp_path, k=1)
    assert (started.status, started.note) == (WRONG, "the values are not those at the positions")


@needs("scipy")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (None, ""),
        (lambda t: t["param"].__setitem__((7, 0), t["param"][7, 0] + 3e-6), "param: 1 of 12 are wrong"),
        (lambda t: t["exp_avg_sq"].__imul__(np.float32(1.001)), "exp_avg_sq: "),
        (lambda t: t["param"].__setitem__(8, 0), "param: a row was changed that the gradient does not name"),
    ],
)
def test_a_wrong_optimizer_step_is_caught(tmp_path, spoil, message):
    """The reference backend passes; what is spoilt afterwards is found."""
    from bench import _optim

    def prepare(case, inputs):
        right = _optim._sparsekit(case, inputs, backend="scipy")

        def result(returned):
            tables = right.result(returned)
            if spoil is not None:
                spoil(tables)
            return tables

        return dataclasses.replace(right, result=result)

    inputs = _data.triplet(np.array([[7, 2, 7, 4]]), _data.values(np.random.default_rng(0), (4, 4), "float32"), (10, 4))
    _, started = start("sparse_adam_step", inputs, prepare, tmp_path)
    assert started.status == (WRONG if message else OK), started.note
    assert message in started.note


@pytest.mark.parametrize(
    ("error", "status", "note"),
    [
        (ModuleNotFoundError("No module named 'peer'"), MISSING, "No module named 'peer'"),
        (SkippedError("too slow"), SKIPPED, "too slow"),
        (RuntimeError("no"), FAILED, "RuntimeError: no"),
        (MemoryError(), FAILED, "MemoryError: "),
    ],
)
def test_what_cannot_run_is_reported(tmp_path, error, status, note):
    def prepare(case, inputs):
        raise error

    _, started = start("coalesce", HAND, prepare, tmp_path)
    assert (started.status, started.note) == (status, note)


def test_arrays_pass_through_files_in_order(tmp_path):
    arrays = {"b": np.arange(3), "a b": np.ones((2, 2), np.float32), "0": np.array([1], np.uint16)}
    save(tmp_path / "new", arrays)
    found = load(tmp_path / "new")
    assert list(found) == list(arrays)
    assert all(found[name].dtype == arrays[name].dtype and np.array_equal(found[name], arrays[name]) for name in arrays)


def test_peak_extra_memory_is_that_of_the_call():
    np.ones(20_000_000)  # an earlier peak
    extra, total = peak_extra(lambda: float(np.ones(4_000_000).sum()))
    assert total == 4_000_000
    if extra is None:
        pytest.skip("this system does not tell the high-water mark of resident memory")
    assert 30e6 < extra < 40e6


def test_copy_bandwidth_counts_reads_and_writes():
    assert 1e8 < Copy(2, 1 << 22).bandwidth() < 1e13


# From end to end


@pytest.fixture
def measured(tmp_path, capsys, both_backends):
    """The rows and the output of a tiny run with three processes of our own and one peer."""
    pytest.importorskip("rich")
    file = tmp_path / "rows.jsonl"
    options = [
        "--quick",
        "--only",
        "topk small (10|100) ",
        "--peers",
        "numpy",
        "--rounds",
        "2",
        "--threads",
        "2",
        "--json",
        str(file),
    ]
    assert _main.main(["run", *options]) == 0
    return file, capsys.readouterr().out


def test_a_tiny_run(measured):
    file, output = measured
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    contenders = ["sparsekit", "sparsekit, 1 thread", "sparsekit scipy", "numpy"]
    assert [(line["case"], line["contender"]) for line in lines] == [
        (case, contender) for case in ("small 10 k=10%", "small 100 k=10%") for contender in contenders
    ]
    for line in lines:
        assert line["status"] == "ok", line
        assert 0 < line["q1_s"] <= line["median_s"] <= line["q3_s"] < 1
        assert line["turns"] == 2 <= line["calls"]
        assert line["warmup_s"] > 0
        assert line["threads"] == (1 if line["contender"] == "sparsekit, 1 thread" else 2)
        assert line["floor_s"] == pytest.approx(line["floor_bytes"] / line["bandwidth"])
        assert line["over_floor"] == pytest.approx(line["median_s"] / line["floor_s"])
        assert line["best_peer"] == ("numpy" if line["ours"] else None)
        assert {"commit", "versions", "cpu", "cpus", "omp_wait_policy", "date"} <= set(line["machine"])
    rows = _results.read(file)
    assert [row.key for row in rows[::4]] == ["topk small 10 k=10%", "topk small 100 k=10%"]
    assert "topk small 100 k=10%" in output
    assert f"8 rows in {file}" in output


@pytest.mark.parametrize("moment", ["checks numpy", "round 1 of 1"])
def test_a_process_that_dies_costs_one_case(moment):
    from bench.run import Plan, Run

    operation = OPERATIONS["topk"]
    case = next(case for case in operation.cases if case.name.startswith("small 10 "))
    numpy = next(contender for contender in operation.contenders if contender.name == "numpy")
    moments = [moment]

    def report(text):
        if text in moments:
            moments.remove(text)
            run.process(numpy)._process.kill()

    with Run(Plan(rounds=1, least=1, turn_s=0.001, limit_s=1), 1, {}, report) as run:
        (row,) = run.measure(case, [numpy])
        assert (row.status, row.note) == (FAILED, "the process ended with exit code -9")
        assert row.median_s is None
        (row,) = run.measure(case, [numpy])
        assert row.status == OK


def test_processes_have_the_threads_that_they_are_told():
    from bench import _start
    from bench.run import Plan, Run

    line = "import os; start -= int(os.environ['OMP_NUM_THREADS'])"  # told by the time that it seems to take
    contender = Contender("threads", partial(_start._import, line=line), threads=3)
    with Run(Plan(1, 1, 0.001, 1), 1, {}) as run:
        (row,) = run.measure(OPERATIONS["import"].cases[0], [contender])
    assert (row.status, row.threads) == (OK, 3)
    assert 3 < row.median_s < 3.9


@needs("rich")
def test_an_input_that_cannot_be_made_is_missing():
    from bench.run import Plan, Run

    def make():
        raise ModuleNotFoundError("No module named 'skfem'")

    with Run(Plan(1, 1, 0.001, 1), 1, {}) as run:
        rows = run.measure(Case("coalesce", "FEM", 3, make), OPERATIONS["coalesce"].contenders)
    assert {(row.status, row.note) for row in rows} == {(MISSING, "needed for the input: No module named 'skfem'")}
    assert "sparsekit" in [row.contender for row in rows]


# Tables, comparisons, charts


def row(contender, ms, *, case="uniform 1e6", n=10**6, spread=0.1, status=OK, **options):
    seconds = ms / 1e3
    return Row(
        operation="coalesce",
        case=case,
        n=n,
        dtype="float32",
        series="uniform pairs",
        contender=contender,
        ours=contender.startswith("sparsekit"),
        status=status,
        median_s=seconds if status == OK else None,
        q1_s=seconds * (1 - spread) if status == OK else None,
        q3_s=seconds * (1 + spread) if status == OK else None,
        peak_extra_bytes=40_000_000,
        input_bytes=20_000_000,
        floor_bytes=30_000_000,
        bandwidth=15e9,
        threads=1 if contender.endswith("1 thread") else 2,
        **options,
    )


RESULTS = [
    row("sparsekit", 10),
    row("sparsekit, 1 thread", 18),
    row("torch", 200),
    row("scipy CSR", 80),
    row("PyG", 1, status=WRONG, note="values: 1 of 2 are wrong"),
    row("polars", 0, status=MISSING, note="No module named 'polars'"),
    row("sparsekit", 3, case="uniform 1e5", n=10**5),
    row("scipy CSR", 6, case="uniform 1e5", n=10**5),
]


def test_targets_are_judged_by_the_worst_case():
    found = {verdict.target.text: verdict for verdict in _targets.judge(_results.cells(RESULTS))}
    best = found["coalesce 1e6: times the best peer"]
    assert (best.worst, best.met) == (pytest.approx(8), True)
    assert not found["coalesce 1e5: times the best peer"].met
    memory = found["extra memory over input, coalesce"]
    assert (memory.worst, memory.measured, memory.met) == (2, 2, True)
    peers = found["no peer faster by more than 10 %"]
    assert (peers.worst, peers.case) == (pytest.approx(2), "coalesce uniform 1e5")
    assert found["two threads over one"].worst == pytest.approx(1.8)
    assert found["coalesce 1e7: times torch"].worst is None


@needs("rich")
def test_table_command_prints_markdown(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    _results.write(file, RESULTS)
    assert _results.read(file) == RESULTS
    assert _main.main(["table", str(file), "--all"]) == 0
    shown = capsys.readouterr().out
    assert "| coalesce uniform 1e6 | 10.0 | 9.00 - 11.0 | scipy CSR | 80.0 | 8.00x | 2.00 | 5.00x | 2.00x | 1.80x |" in shown
    assert "| coalesce 1e6: times the best peer | >= 6.00x | 8.00x | met | coalesce uniform 1e6 |" in shown
    assert "| coalesce 1e5: times the best peer | >= 3.00x | 2.00x | missed | coalesce uniform 1e5 |" in shown
    assert "| PyG | wrong | values: 1 of 2 are wrong | coalesce uniform 1e6 |" in shown
    assert "| polars | missing | No module named 'polars' | coalesce uniform 1e6 |" in shown
    assert "| coalesce uniform 1e6 | torch | 200 | 180 - 220 | 20.0x |" in shown


@pytest.mark.parametrize(
    ("after", "verdict", "ratio"),
    [
        ([row("sparsekit", 20), row("scipy CSR", 160)], "same", 1),  # a slower machine
        ([row("sparsekit", 11), row("scipy CSR", 80)], "same", 10 / 11),  # within the quartiles
        ([row("sparsekit", 20), row("scipy CSR", 80)], "slower", 0.5),
        ([row("sparsekit", 2.5), row("scipy CSR", 40), row("torch", 10)], "faster", 2),  # torch was not the best peer before
    ],
)
def test_compare_goes_by_the_ratio_to_the_same_peer(after, verdict, ratio):
    from bench import compare

    (change,), _ = compare.changes(RESULTS[:4], after)
    assert (change.key, change.peer) == ("coalesce uniform 1e6", "scipy CSR")
    assert change.verdict == verdict
    assert change.ratio == pytest.approx(ratio)


def test_compare_takes_small_changes_for_noise():
    from bench import compare

    before, after = ([row("sparsekit", ms, spread=0), row("scipy CSR", 80, spread=0)] for ms in (10, 10.4))
    assert [change.verdict for change in compare.changes(before, after)[0]] == ["same"]


@needs("rich")
def test_compare_command_tells_what_else_changed(tmp_path, capsys):
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    _results.write(files[0], RESULTS)
    fixed = [
        dataclasses.replace(r, status=OK, median_s=1.0, q1_s=1.0, q3_s=1.0) if r.contender == "PyG" else r for r in RESULTS[:6]
    ]
    _results.write(files[1], fixed)
    assert _main.main(["compare", *map(str, files)]) == 0
    shown = capsys.readouterr().out
    assert "coalesce uniform 1e6: PyG was wrong, is ok" in shown
    assert "only before: coalesce uniform 1e5" in shown
    assert "same" in shown


@needs("matplotlib")
def test_plot_writes_a_chart_for_each_operation(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    _results.write(file, RESULTS)
    assert _main.main(["plot", str(file), "--to", str(tmp_path / "charts")]) == 0
    assert [path.name for path in sorted((tmp_path / "charts").iterdir())] == ["coalesce.png", "coalesce.svg"]
    assert (tmp_path / "charts/coalesce.png").read_bytes().startswith(b"\x89PNG")
    assert "uniform pairs" in (tmp_path / "charts/coalesce.svg").read_text()
    assert str(tmp_path / "charts" / "coalesce.svg") in capsys.readouterr().out


@needs("rich")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "nowhere.jsonl"], "No such file"),
        (["table", "{empty}"], "expected rows of results, got none"),
        (["table", "{other}"], "line 1: expected a row of results, got '{\"a\": 1}'"),
        (["run", "--only", "no such case"], "no case matches --only"),
        (["run", "--only", "("], "expected a regular expression"),
        (["run", "--rounds", "0"], "expected an integer >= 1"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, capsys, arguments, message):
    (tmp_path / "empty").write_text("")
    (tmp_path / "other").write_text('{"a": 1}\n')
    arguments = [a.format(empty=tmp_path / "empty", other=tmp_path / "other") if a.startswith("{") else a for a in arguments]
    with pytest.raises(SystemExit) as stopped:
        _main.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_list_names_the_cases_and_runs_nothing(capsys):
    pytest.importorskip("rich")
    assert _main.main(["run", "--quick", "--list", "--only", "^coalesce uniform"]) == 0
    assert capsys.readouterr().out.split("\n") == ["coalesce uniform 1e5", "coalesce uniform 1e6", ""]
