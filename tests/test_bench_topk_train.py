"""The training job of ``python -m bench topk-train``: its data, its methods, its verdict."""

import dataclasses
import importlib.util
import io
import json
import math

import pytest

pytest.importorskip("bench", reason="bench is run from the checkout and never installed")
pytest.importorskip("torch.nn")
pytest.importorskip("rich.console")
pytest.importorskip("sklearn.datasets")
import torch
from rich.console import Console

import sparsekit
from bench import __main__ as _main
from bench import _digits, _topk_train
from bench._digits import DENSE, FEEDBACK, METHODS, MODELS, NO_FEEDBACK
from sparsekit.torch import topk_gradients_

JOB = _topk_train.Job(ratio=0.01, epochs=1, seeds=1, lr=0.1, threads=1, held_out="test")


@pytest.fixture(scope="module")
def rows():
    """What a small job gives: 20 steps from one seed."""
    threads = torch.get_num_threads(), sparsekit.get_num_threads()
    found = _topk_train.train(JOB, Console(file=io.StringIO()))
    torch.set_num_threads(threads[0])
    sparsekit.set_num_threads(threads[1])
    return found


def pixels(images):
    return {tuple(image.ravel().tolist()) for image in images}


def test_what_is_held_out_is_never_trained_on():
    final, tuning = _digits.load_split("test"), _digits.load_split("validation")
    assert [len(split.labels) for split in (final, tuning)] == [1297, 997]
    assert [len(split.held_labels) for split in (final, tuning)] == [500, 300]
    everything = pixels(final.images) | pixels(final.held_images)
    assert len(everything) == 1797  # all images differ, so that they tell who is who
    assert pixels(tuning.images) | pixels(tuning.held_images) == pixels(final.images)
    assert not pixels(tuning.images) & pixels(tuning.held_images)
    for split in (final, tuning):
        shares = torch.bincount(split.held_labels) / len(split.held_labels)
        assert shares.min() > 0.09 and shares.max() < 0.11
        assert split.images.shape[1:] == (1, 8, 8) and split.images.min() == 0 and split.images.max() == 1


def test_a_row_for_each_network_and_method(rows):
    assert [(row.model, row.method) for row in rows] == [(model, method) for model in MODELS for method in METHODS]
    for row in rows:
        assert row.lr == 0.1
        assert len(row.accuracies) == 1 and 0 < row.accuracy == row.accuracies[0] <= 100
        assert 0 < row.optimizer_step_ms < row.training_step_ms
        dense = next(other for other in rows if (other.model, other.method) == (row.model, DENSE))
        assert row.difference == row.accuracy - dense.accuracy


def test_only_the_chosen_share_reaches_the_update(rows):
    for row in rows:
        k = math.ceil(0.01 * row.coordinates)
        if row.method == DENSE:
            assert row.sent_per_step > 10 * k
        elif "warm-up" in row.method:  # its first stage, an epoch here, keeps 25 %
            assert 10 * k < row.sent_per_step <= math.ceil(0.25 * row.coordinates)
        else:
            assert row.sent_per_step == k


@pytest.mark.parametrize("model", MODELS)
def test_parameters_move_by_the_chosen_share_without_momentum(monkeypatch, model):
    """Counted on the parameters, not by the hook that the command counts with."""
    monkeypatch.setattr(_digits, "MOMENTUM", 0.0)
    training = _digits.Training(_digits.load_split("test"), model, FEEDBACK, ratio=0.01, lr=0.1, epochs=1, seed=0)
    for _ in range(3):
        before = [p.detach().clone() for p in training._parameters]
        training.step()
        moved = sum(int((p != old).sum()) for p, old in zip(training._parameters, before, strict=True))
        assert 0.9 * 0.01 * _digits.size(model) < moved <= math.ceil(0.01 * _digits.size(model))


def test_without_feedback_it_is_topk_gradients_in_a_plain_loop():
    split = _digits.load_split("test")
    wrapped, plain = (
        _digits.Training(split, "MLP", method, ratio=0.01, lr=0.1, epochs=1, seed=3) for method in (NO_FEEDBACK, DENSE)
    )
    plain._optimizer.register_step_pre_hook(lambda *_: topk_gradients_(plain._parameters, ratio=0.01))
    for _ in range(5):
        wrapped.step()
        plain.step()
    for p, q in zip(wrapped._parameters, plain._parameters, strict=True):
        assert torch.equal(p, q)


def test_a_seed_decides_start_and_batches_for_all_methods():
    split = _digits.load_split("test")

    def first_batch(method, seed):
        training = _digits.Training(split, "MLP", method, ratio=0.01, lr=0.1, epochs=1, seed=seed)
        return training._parameters[1].detach().clone(), next(training._batches)[0]

    weights, images = first_batch(DENSE, 1)
    for method in METHODS:
        others = first_batch(method, 1)
        assert torch.equal(weights, others[0]) and torch.equal(images, others[1])
    assert not torch.equal(weights, first_batch(DENSE, 2)[0]) and not torch.equal(images, first_batch(DENSE, 2)[1])


@pytest.mark.parametrize(
    ("model", "method", "difference", "status"),
    [
        ("MLP", FEEDBACK, -1.0, 0),
        ("MLP", FEEDBACK, 3.0, 0),
        ("MLP", NO_FEEDBACK, -50.0, 0),
        ("MLP", FEEDBACK, -1.01, 1),
        ("convolutional", FEEDBACK, -1.01, 1),
        ("convolutional", FEEDBACK, math.nan, 1),
    ],
)
def test_error_feedback_below_the_limit_is_said_and_gives_status_1(rows, model, method, difference, status):
    def judged(row):
        asked = (row.model, row.method) == (model, method)
        return dataclasses.replace(row, difference=difference if asked else 0.0)

    console = Console(file=io.StringIO(), width=200)
    assert _topk_train.show(JOB, [judged(row) for row in rows], console) == status
    shown = console.file.getvalue()
    assert (f"FAILED: {model}: Top-K, error feedback differs from dense by" in shown) == (status == 1)
    assert ("within 1 point" in shown) == (status == 0)
    assert all(text in shown for text in METHODS) and all(text in shown for text in MODELS)


def test_command_passes_its_options_on_and_writes_a_line_for_each_row(rows, tmp_path, capsys, monkeypatch):
    jobs = []

    def already_trained(job, console):
        jobs.append(job)
        return [dataclasses.replace(row, difference=0.0) for row in rows]

    monkeypatch.setattr(_topk_train, "train", already_trained)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    file = tmp_path / "rows.jsonl"
    options = "--ratio 0.02 --epochs 3 --seeds 2 --lr 0.5 --threads 2 --held-out validation --json"
    assert _main.main(["topk-train", *options.split(), str(file)]) == 0
    assert jobs == [_topk_train.Job(ratio=0.02, epochs=3, seeds=2, lr=0.5, threads=2, held_out="validation")]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["model"], line["method"]) for line in lines] == [(row.model, row.method) for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert (line["job"], line["ratio"], line["epochs"], line["seeds"], line["lr"]) == ("topk-train", 0.02, 3, 2, row.lr)
        assert line["accuracies"] == row.accuracies and line["versions"]["torch"] == torch.__version__
    shown = " ".join(capsys.readouterr().out.split())
    assert "trained on 997, validated on 300, the 500 for the test unseen" in shown
    assert "from 0.5 for every method" in shown


@pytest.mark.parametrize("option", ["--ratio 0", "--ratio 1.5", "--epochs 0", "--seeds 0", "--lr -1", "--held-out training"])
def test_options_out_of_range_are_refused_by_name(option, capsys):
    with pytest.raises(SystemExit) as stopped:
        _main.main(["topk-train", *option.split()])
    assert stopped.value.code == 2
    assert option.split()[0] in capsys.readouterr().err


def test_a_package_that_is_missing_is_named_as_pip_knows_it(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    with pytest.raises(SystemExit):
        _main.main(["topk-train"])
    assert "pip install scikit-learn" in capsys.readouterr().err


def test_each_method_has_one_of_the_learning_rates_tried():
    assert {(model, method) for model, of in _digits.LEARNING_RATES.items() for method in of} == {
        (model, method) for model in MODELS for method in METHODS
    }
    assert {lr for of in _digits.LEARNING_RATES.values() for lr in of.values()} <= set(_digits.TRIED)


def test_without_lr_each_method_gets_its_own(monkeypatch):
    monkeypatch.setitem(_digits.LEARNING_RATES, "MLP", {DENSE: 0.25, FEEDBACK: 0.5})
    for module in (_digits, _topk_train):
        monkeypatch.setattr(module, "MODELS", {"MLP": MODELS["MLP"]})
        monkeypatch.setattr(module, "METHODS", {method: METHODS[method] for method in (DENSE, FEEDBACK)})
    job = dataclasses.replace(JOB, lr=None)
    assert [row.lr for row in _topk_train.train(job, Console(file=io.StringIO()))] == [0.25, 0.5]
    assert "each method's best of 0.05, 0.1, 0.2, 0.4" in _topk_train.describe(job)
