"""The training job of ``python -m bench train``: its text, its sampler, and both optimizers on a tiny text."""

import dataclasses
import importlib.metadata
import importlib.util
import inspect
import io
import itertools
import json
import os
import pydoc_data.topics

import numpy as np
import pytest

_ONLY_CHECKOUT = "bench is run from the checkout and never installed"
_text = pytest.importorskip("bench._text", reason=_ONLY_CHECKOUT)
_pairs = pytest.importorskip("bench._pairs", reason=_ONLY_CHECKOUT)
_main = pytest.importorskip("bench.__main__", reason=_ONLY_CHECKOUT)

needs_torch = pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("rich")), reason="needs torch and rich"
)


@pytest.fixture(scope="module")
def shipped():
    return list(_text.stdlib_paragraphs())


def assert_distributed(observed, expected):
    """Chi-square: counts observed against expected weights, at five standard deviations of the statistic."""
    assert chi_square_excess(observed, expected) < 5


def chi_square_excess(observed, expected):
    expected = expected / expected.sum() * observed.sum()
    possible = expected > 0
    assert not observed[~possible].any()
    assert expected[possible].min() >= 5, "too few draws for a chi-square test"
    statistic = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = possible.sum() - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


# The text


def test_shipped_text_is_the_docstrings_and_topics_as_they_stand(shipped):
    dumps = inspect.cleandoc(json.dumps.__doc__)
    assert dumps.split("\n\n")[0] in shipped
    topic = pydoc_data.topics.topics["assert"]
    assert _text._BLANK_LINES.split(_text._DOCTEST.sub("", topic))[1] in shipped
    assert "Assert statements are a convenient way to insert debugging" in "\n".join(shipped)
    assert not any(line.lstrip().startswith(">>>") for paragraph in shipped for line in paragraph.splitlines())


def test_shipped_text_is_large_and_the_same_every_time(shipped):
    text = _text.number_words(shipped)
    assert len(text.ids) > 100_000
    assert len(text.words) > 5_000
    assert "the" in text.words[:3]
    again = list(itertools.islice(_text.stdlib_paragraphs(), 1000))
    assert again == shipped[:1000]


def test_stdlib_paragraphs_follow_names_import_nothing_and_skip_tests(tmp_path):
    for name, source in {
        "zebra.py": '"""Last of all."""\nraise SystemExit("imported")',
        "alpha.py": 'class A:\n    """About A.\n\n    >>> 1\n    More."""\n    def f(self):\n        """About f."""',
        "broken.py": '"""Unfinished',
        "mid/inner.py": '"""Inner."""',
        "mid/test/noise.py": '"""Noise."""',
        "site-packages/other.py": '"""Other."""',
        "pydoc_data/topics.py": 'topics = {"t": "A topic."}',
        "notes.txt": '"""Notes."""',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    found = [paragraph.strip() for paragraph in _text.stdlib_paragraphs(tmp_path)]
    assert found == ["About A.", "More.", "About f.", "Last of all.", "Inner.", "t", "A topic."]


def test_numbering():
    text = _text.number_words(["b a! B_1 c-c", "", "A, a c"] * 200)
    assert text.words == ["a", "c", "b", "b_1"]
    assert text.counts.tolist() == [600, 600, 200, 200]
    assert text.ids[:7].tolist() == [2, 0, 3, 1, 1, 0, 0]
    assert text.paragraph[:9].tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 3]


def test_min_count_drops_rare_words_from_the_text():
    text = _text.number_words(["rare " + "a b " * 600], min_count=2)
    assert text.words == ["a", "b"]
    assert len(text.ids) == len(text.paragraph) == text.counts.sum() == 1200


def test_user_file(tmp_path):
    file = tmp_path / "own.txt"
    file.write_bytes(("Zwei Wörter\nund mehr\n \nÄrger\n" * 300).encode() + b"\xff")
    assert list(itertools.islice(_text.file_paragraphs(file), 2)) == [
        "Zwei Wörter\nund mehr\n",
        "Ärger\nZwei Wörter\nund mehr\n",
    ]
    text = _text.read_text(file)
    assert sorted(text.words) == ["mehr", "und", "wörter", "zwei", "ärger"]
    assert text.counts.tolist() == [300] * 5


@needs_torch
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a few words", "own.txt: expected at least 1000 words to train on, got 3"),
        ("", "expected at least 1000 words to train on, got 0"),
        ("same " * 2000, "expected at least 2 words that occur 1 times or more, got 1"),
        ("one\n\ntwo\n\n" * 1000, "got no two words in one paragraph"),
        (None, "No such file"),
    ],
)
def test_unusable_file_is_refused_by_name(tmp_path, capsys, content, message):
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit) as stopped:
        _main.main(["train", "--text", str(file)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


# The sampler


def numbered(ids, paragraph):
    ids = np.asarray(ids, dtype=np.int32)
    counts = np.bincount(ids)
    return _text.Text([f"w{i}" for i in range(len(counts))], counts, ids, np.asarray(paragraph, dtype=np.int32))


def pair_weights(text, keep):
    """For every ordered pair of places at most 5 apart in one paragraph: (here, there, weight), in plain loops."""
    for here in range(len(text.ids)):
        for there in range(max(0, here - 5), min(len(text.ids), here + 6)):
            if here != there and text.paragraph[here] == text.paragraph[there]:
                weight = (6 - abs(here - there)) * keep[text.ids[here]] * keep[text.ids[there]]
                yield here, there, weight


def test_pairs_lie_within_the_window_of_one_paragraph():
    # Every place holds a word of its own, so that a word tells its place.
    text = numbered(np.arange(2000), np.repeat(np.arange(400), [3, 7] * 200))
    centres, targets = _pairs.Pairs(text, batch=20_000, seed=3).batch(0, 0)
    contexts = targets[:, 0]
    distances = contexts - centres
    assert (distances != 0).all()
    assert (abs(distances) <= 5).all()
    assert (text.paragraph[centres] == text.paragraph[contexts]).all()
    expected = np.zeros(11)
    for here, there, weight in pair_weights(text, np.ones(2000)):
        expected[there - here + 5] += weight
    assert_distributed(np.bincount(distances + 5, minlength=11), expected)


def test_frequent_words_are_subsampled():
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, 31)
    text = numbered(rng.choice(30, size=3000, p=weights / weights.sum()), np.zeros(3000))
    keep = np.minimum(1, np.sqrt(0.02 / (text.counts / 3000)))
    assert 0 < (keep == 1).sum() < 30
    centres, targets = _pairs.Pairs(text, batch=20_000, seed=1, threshold=0.02).batch(0, 0)
    expected = np.zeros(30)
    without = np.zeros(30)
    for here, _, weight in pair_weights(text, keep):
        expected[text.ids[here]] += weight
    for here, _, weight in pair_weights(text, np.ones(30)):
        without[text.ids[here]] += weight
    for drawn in (centres, targets[:, 0]):  # a pair is as likely as its mirror image
        observed = np.bincount(drawn, minlength=30)
        assert_distributed(observed, expected)
        assert chi_square_excess(observed, without) > 100


def test_negatives_follow_counts_to_the_three_quarters():
    counts = np.array([4000, 1500, 600, 300, 150, 80, 40, 20, 8, 2])
    text = numbered(np.random.default_rng(0).permutation(np.repeat(np.arange(10), counts)), np.zeros(counts.sum()))
    _, targets = _pairs.Pairs(text, batch=20_000, seed=5, negatives=5).batch(0, 0)
    assert targets.shape == (20_000, 6)
    observed = np.bincount(targets[:, 1:].ravel(), minlength=10)
    assert_distributed(observed, counts**0.75)
    assert chi_square_excess(observed, counts**0.7) > 50
    assert chi_square_excess(observed, counts**0.8) > 50


def test_a_batch_is_a_function_of_seed_stream_and_number():
    text = numbered(np.arange(2000), np.zeros(2000))
    sampler = _pairs.Pairs(text, batch=50, seed=7)

    def batch(sampler, *which):
        return np.column_stack(sampler.batch(*which))

    first = batch(sampler, 0, 3)
    assert first.dtype == np.int64
    others = [batch(sampler, 0, 4), batch(sampler, 1, 3), batch(_pairs.Pairs(text, batch=50, seed=8), 0, 3)]
    assert not any((first == other).all() for other in others)
    assert (batch(_pairs.Pairs(text, batch=50, seed=7), 0, 3) == first).all()


# The training


@pytest.fixture(scope="module")
def trained(shipped):
    """A small job and what both contenders made of it, each in a process of its own."""
    from rich.console import Console

    from bench import _train
    from bench._contender import Job
    from bench._optimizers import BOTH

    console = Console(file=io.StringIO())

    text = _text.number_words(shipped[:1000])
    job = Job(text=text, steps=30, dim=16, batch=512, lr=0.05, seed=0, threads=1)
    return job, _train.train(job, BOTH, console)


@needs_torch
def test_both_optimizers_train_to_the_same_embedding(trained):
    _, (ours, theirs) = trained
    assert (ours.name, theirs.name) == ("sparsekit", "torch")
    assert len(ours.losses) == len(theirs.losses) == len(ours.optimizer_times) == 30
    assert ours.batches_crc32 == theirs.batches_crc32
    assert ours.start_loss == theirs.start_loss == pytest.approx(6 * np.log(2), rel=1e-6)
    assert ours.final_loss < 0.8 * ours.start_loss
    assert ours.final_loss == pytest.approx(theirs.final_loss, rel=1e-4)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-4)
    np.testing.assert_allclose(ours.vectors, theirs.vectors, rtol=1e-3, atol=1e-4)
    assert 0 < ours.optimizer_times[-1] < ours.step_times[-1]


@needs_torch
@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({}, 0, "relative."),
        ({"final_loss": 1.0002}, 1, "FAILED: the final losses differ by 2.0e-04 relative; the limit is 1e-04"),
        ({"final_loss": float("nan")}, 1, "FAILED: the final losses differ by nan"),
        ({"batches_crc32": 0}, 1, "FAILED: the contenders did not train on the same batches"),
    ],
)
def test_a_disagreement_is_said_and_gives_status_1(trained, changes, status, message):
    from rich.console import Console

    from bench import _train

    job, (ours, theirs) = trained
    if "final_loss" in changes:
        changes = {"final_loss": changes["final_loss"] * theirs.final_loss}
    console = Console(file=io.StringIO(), width=200)
    assert _train.show(job, [dataclasses.replace(ours, **changes), theirs], console) == status
    shown = console.file.getvalue()
    assert message in shown
    assert ("FAILED" in shown) == (status == 1)


@needs_torch
def test_command_passes_its_options_on_and_writes_a_row_for_each_optimizer(tmp_path, capsys, monkeypatch, shipped, trained):
    from bench import _train

    (tmp_path / "own.txt").write_text("\n\n".join(shipped[:1000]), encoding="utf-8")
    jobs = []

    def train_already_done(job, names, console):
        jobs.append((job, names))
        return trained[1]

    monkeypatch.setattr(_train, "train", train_already_done)
    options = "--steps 30 --dim 16 --batch 512 --threads 1 --seed 0 --lr 0.05 --optimizer both"
    files = ["--text", str(tmp_path / "own.txt"), "--json", str(tmp_path / "rows.json")]
    assert _main.main(["train", *files, *options.split()]) == 0
    ((job, names),) = jobs
    assert names == ("sparsekit", "torch")
    assert job.text.words == trained[0].text.words
    assert dataclasses.replace(job, text=trained[0].text) == trained[0]

    rows = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert [row["optimizer"] for row in rows] == ["sparsekit", "torch"]
    for row in rows:
        assert (row["job"], row["steps"], row["batch"], row["threads"]) == ("train", 30, 512, 1)
        assert row["versions"]["torch"] == importlib.metadata.version("torch")
        assert row["omp_wait_policy"] == os.environ.get("OMP_WAIT_POLICY", "passive")
        assert row["final_loss"] < row["start_loss"]
        assert 0 < row["optimizer_step_ms"] < row["training_step_ms"]
    assert "own.txt" in capsys.readouterr().out


@needs_torch
def test_neighbours_are_the_nearest_by_cosine():
    from bench import _train

    names = ["file", "open", "list", "append", "seldom"]
    text = _text.Text(names, np.array([90, 80, 70, 60, 1]), np.zeros(0, np.int32), np.zeros(0, np.int32))
    vectors = np.array([[1, 0], [9, 1], [0, 2], [1, 9], [1, 0]], dtype=np.float32)
    assert _train.neighbours(text, vectors, words=2, each=2) == {"file": ["open", "append"], "list": ["append", "open"]}


@needs_torch
def test_a_contender_that_fails_is_reported():
    from bench._contender import Contender, Job

    text = numbered(np.arange(2000), np.zeros(2000))
    with pytest.raises(RuntimeError, match="the torch contender ended early, exit code 1"):
        Contender(Job(text=text, steps=1, dim=4, batch=8, lr=-1.0, seed=0, threads=1), "torch").wait()
