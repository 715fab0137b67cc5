"""Networks trained with Top-K gradients and densely, on the same batches from the same start, and how well they do."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median, stdev

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import sparsekit
from bench import _digits, _machine
from bench._digits import DENSE, FEEDBACK, LEARNING_RATES, METHODS, MODELS, TRIED, Run, Training

LIMIT = 1.0  # points of accuracy that error feedback may cost
_FIRST_STEPS = 5  # not in the medians: sparsekit compiles there


@dataclass(frozen=True)
class Job:
    """What is to be trained; the same for every method."""

    ratio: float
    epochs: int
    seeds: int
    lr: float | None  # None: LEARNING_RATES
    threads: int
    held_out: str  # "test" or "validation"


@dataclass(frozen=True)
class Summary:
    """One network by one method over the seeds: accuracies in % on what was held out, medians of the step times in ms."""

    model: str
    method: str
    lr: float
    coordinates: int
    sent_per_step: float
    accuracies: list[float]
    accuracy: float
    difference: float
    training_step_ms: float
    optimizer_step_ms: float


def train(job: Job, console: Console) -> list[Summary]:
    """Train every network by every method from every seed; sets the thread counts of torch and of sparsekit."""
    torch.set_num_threads(job.threads)
    sparsekit.set_num_threads(job.threads)
    split = _digits.load_split(job.held_out)
    steps = _digits.steps_per_epoch(split)
    runs: dict[tuple[str, str], list[Run]] = {(model, method): [] for model in MODELS for method in METHODS}
    columns = (TextColumn("{task.description:<45}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"), TimeElapsedColumn())
    # No refresh by itself: its thread would run inside the times.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=job.seeds * len(runs) * job.epochs)
        # A seed at a time, so that the machine's moods fall on all methods alike.
        for seed, model, method in _turns(job.seeds):
            lr = LEARNING_RATES[model][method] if job.lr is None else job.lr
            training = Training(split, model, method, ratio=job.ratio, lr=lr, epochs=job.epochs, seed=seed)
            for _ in range(job.epochs):
                for _ in range(steps):
                    training.step()
                progress.update(bar, advance=1, description=f"seed {seed}, {model}, {method}", refresh=True)
            runs[model, method].append(training.result())
    return [summarise(model, method, of, runs[model, DENSE]) for (model, method), of in runs.items()]


def _turns(seeds: int) -> Iterator[tuple[int, str, str]]:
    return ((seed, model, method) for seed in range(seeds) for model in MODELS for method in METHODS)


def summarise(model: str, method: str, runs: list[Run], dense: list[Run]) -> Summary:
    accuracies = [run.accuracy for run in runs]
    return Summary(
        model,
        method,
        runs[0].lr,
        _digits.size(model),
        mean(sent for run in runs for sent in run.sent),
        accuracies,
        mean(accuracies),
        mean(accuracies) - mean(run.accuracy for run in dense),
        1e3 * median(time for run in runs for time in run.step_times[_FIRST_STEPS:]),
        1e3 * median(time for run in runs for time in run.optimizer_times[_FIRST_STEPS:]),
    )


def shortfalls(rows: list[Summary]) -> list[str]:
    """The networks that Top-K with error feedback leaves more than LIMIT below dense, each in a sentence."""
    return [
        f"{row.model}: {FEEDBACK} differs from dense by {row.difference:+.2f} points; the limit is {-LIMIT:+.2f}"
        for row in rows
        if row.method == FEEDBACK and not row.difference >= -LIMIT  # NaN too
    ]


def show(job: Job, rows: list[Summary], console: Console) -> int:
    """Print the table and the verdict; the exit status, 1 if error feedback is not within LIMIT of dense on either network."""
    table = Table(title=f"Top-K {100 * job.ratio:g} % on handwritten digits")
    table.add_column("network, method")
    accuracy = f"{job.held_out}\naccuracy, %"
    for heading in ("lr", "nonzeros\na step", accuracy, "to dense,\npoints", "training\nstep, ms", "optimizer\nstep, ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.method == DENSE:
            table.add_section()
            table.add_row(f"[bold]{row.model}[/bold], {row.coordinates:,} coordinates")
        spread = f" ± {stdev(row.accuracies):.2f}" if len(row.accuracies) > 1 else ""
        table.add_row(
            f"  {row.method}",
            f"{row.lr:g}",
            f"{row.sent_per_step:,.0f} ({100 * row.sent_per_step / row.coordinates:.1f} %)",
            f"{row.accuracy:.2f}{spread}",
            "" if row.method == DENSE else f"{row.difference:+.2f}",
            f"{row.training_step_ms:.2f}",
            f"{row.optimizer_step_ms:.2f}",
        )
    console.print(table)
    console.print(
        "nonzeros: gradient coordinates that the update saw, mean over all steps; accuracy: mean and standard deviation over "
        "the seeds. Momentum correction, masking and warm-up come on top of error feedback. "
        "Step times: medians without the first steps, in which sparsekit compiles.",
        style="dim",
    )
    problems = shortfalls(rows)
    for problem in problems:
        console.print(f"FAILED: {problem}", style="bold red")
    if not problems:
        console.print(f"{FEEDBACK}: within {LIMIT:g} point of dense on both networks, or better.")
    return 1 if problems else 0


def describe(job: Job) -> str:
    """What is trained and what was held out, in words."""
    parts = _digits.PARTS
    held = {
        "test": f"trained on {parts['training'] + parts['validation']}, tested on {parts['test']} that were held out",
        "validation": f"trained on {parts['training']}, validated on {parts['validation']}, "
        f"the {parts['test']} for the test unseen",
    }[job.held_out]
    lr = (
        f"each method's best of {', '.join(map(str, TRIED))} when {parts['validation']} of the former were held out instead"
        if job.lr is None
        else f"{job.lr:g} for every method"
    )
    return (
        f"scikit-learn's {sum(parts.values())} digits: {held}.\n"
        f"{job.epochs} epochs in batches of {_digits.BATCH}, seeds 0 to {job.seeds - 1}; SGD with momentum {_digits.MOMENTUM:g}, "
        f"no weight decay, no clipping; lr falling by a cosine to 0 from {lr}; warm-up: 4 stages of an epoch each; "
        f"threads: {job.threads}"
    )


def write_json(path: Path, job: Job, rows: list[Summary]) -> None:
    """One line of JSON for each network and method."""
    machine = _machine.describe(("numpy", "numba", "torch", "scikit-learn"))
    machine["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    settings = {**vars(job), "batch": _digits.BATCH, "momentum": _digits.MOMENTUM, "parts": _digits.PARTS}
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            line = {"job": "topk-train", **settings, **vars(row), **machine}  # the row's own lr
            file.write(json.dumps(line) + "\n")
