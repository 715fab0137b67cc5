"""Skip-gram embeddings of real text, trained with sparsekit's optimizers and torch's on the same batches."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench._contender import Contender, Job, Result
from bench._optimizers import BOTH
from bench._text import Text

LOSS_LIMIT = 1e-4
_ROUND = 20
_WARMUP = 5
_WANTED = ("function", "file", "list", "string", "error", "thread")
_COMMON = 20  # a word seen less often has learned too little to be asked for, or shown


@dataclass(frozen=True)
class Summary:
    """One contender's row: medians in ms over the steps after the warm-up, whose optimizer time stands apart in s."""

    optimizer: str
    optimizer_step_ms: float
    training_step_ms: float
    warmup_steps: int
    warmup_s: float
    start_loss: float
    final_loss: float
    batches_crc32: int
    state_mb: float


def train(job: Job, names: tuple[str, ...], console: Console) -> list[Result]:
    """Train every contender, in turns of a few steps so that the machine's moods fall on all of them alike."""
    with _progress(console) as progress:
        bars = {name: progress.add_task(name, total=job.steps, loss="loading") for name in names}
        contenders = {name: Contender(job, name) for name in names}
        for contender in contenders.values():
            contender.wait()
        for steps in _rounds(job.steps):
            for name, contender in contenders.items():
                for loss in contender.train(steps):
                    progress.update(bars[name], advance=1, loss=f"loss {loss:.4f}")
        return [contender.finish() for contender in contenders.values()]


def summarise(result: Result) -> Summary:
    warmup = _warmup(len(result.losses))
    return Summary(
        result.name,
        1e3 * median(result.optimizer_times[warmup:]),
        1e3 * median(result.step_times[warmup:]),
        warmup,
        sum(result.optimizer_times[:warmup]),
        result.start_loss,
        result.final_loss,
        result.batches_crc32,
        result.state_bytes / 1e6,
    )


def disagreement(ours: Summary, theirs: Summary) -> str | None:
    """Why two rows cannot be compared, or None: other batches, or final losses further apart than LOSS_LIMIT."""
    if ours.batches_crc32 != theirs.batches_crc32 or ours.start_loss != theirs.start_loss:
        return "the contenders did not train on the same batches from the same start"
    difference = relative_difference(ours, theirs)
    if not difference <= LOSS_LIMIT:  # NaN too
        return f"the final losses differ by {difference:.1e} relative; the limit is {LOSS_LIMIT:.0e}"
    return None


def relative_difference(ours: Summary, theirs: Summary) -> float:
    return abs(ours.final_loss - theirs.final_loss) / abs(theirs.final_loss)


def neighbours(text: Text, vectors: np.ndarray[Any, Any], *, words: int = 6, each: int = 6) -> dict[str, list[str]]:
    """The nearest words by cosine of a few common words, among the words that occur often."""
    common = np.flatnonzero(text.counts >= _COMMON)
    asked = [word for word in _WANTED if word in text.words and text.counts[text.words.index(word)] >= _COMMON]
    asked += [text.words[i] for i in common if len(text.words[i]) >= 6 and text.words[i] not in asked]
    unit = vectors[common] / np.maximum(np.linalg.norm(vectors[common], axis=1, keepdims=True), 1e-30)
    found = {}
    for word in asked[:words]:
        # Words are numbered by falling count, so the common ones are the first, under the numbers they had.
        itself = text.words.index(word)
        order = np.argsort(-(unit @ unit[itself]), kind="stable")
        found[word] = [text.words[i] for i in order if i != itself][:each]
    return found


def show(job: Job, results: list[Result], console: Console) -> int:
    """Print the table, the comparison and the neighbours; the exit status, 1 if the contenders disagree."""
    rows = [summarise(result) for result in results]
    table = Table(title="The same batches from the same start")
    table.add_column("optimizer", no_wrap=True)
    warmup = f"first {rows[0].warmup_steps}\noptimizer steps"
    for heading in ("optimizer\nstep", "training\nstep", warmup, "loss\nbefore", "loss\nafter", "states\nMB"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.optimizer,
            f"{row.optimizer_step_ms:.2f} ms",
            f"{row.training_step_ms:.2f} ms",
            f"{row.warmup_s:.2f} s",
            f"{row.start_loss:.6f}",
            f"{row.final_loss:.6f}",
            f"{row.state_mb:.1f}",
        )
    console.print(table)
    console.print("Step times are medians without the first steps, in which sparsekit compiles.", style="dim")

    status = 0
    if tuple(row.optimizer for row in rows) == BOTH:  # others are different methods
        ours, theirs = rows
        console.print(
            f"{ours.optimizer}'s optimizer step is {theirs.optimizer_step_ms / ours.optimizer_step_ms:.2f}x, the whole "
            f"training step {theirs.training_step_ms / ours.training_step_ms:.2f}x as fast as {theirs.optimizer}'s; "
            f"the losses differ by {relative_difference(ours, theirs):.1e} relative."
        )
        problem = disagreement(ours, theirs)
        if problem:
            console.print(f"FAILED: {problem}", style="bold red")
            status = 1

    nearest = Table(title=f"Nearest neighbours ({rows[0].optimizer})", show_header=False)
    for word, near in neighbours(job.text, results[0].vectors).items():
        nearest.add_row(f"[bold]{word}[/bold]", ", ".join(near))
    console.print(nearest)
    return status


def write_json(path: Path, job: Job, results: list[Result]) -> None:
    """One line of JSON for each contender."""
    settings = {"steps": job.steps, "dim": job.dim, "batch": job.batch, "lr": job.lr, "seed": job.seed}
    corpus = {"words": len(job.text.ids), "vocabulary": len(job.text.words)}
    with open(path, "w", encoding="utf-8") as file:
        for result in results:
            row = {"job": "train", **vars(summarise(result)), **settings, **corpus, "threads": job.threads}
            file.write(json.dumps(row | result.machine) + "\n")


def _warmup(steps: int) -> int:
    return min(_WARMUP, steps // 2)


def _rounds(steps: int) -> Iterator[int]:
    """The warm-up, then turns of equal length."""
    warmup = _warmup(steps)
    if warmup:
        yield warmup
    for done in range(warmup, steps, _ROUND):
        yield min(_ROUND, steps - done)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description:>16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield progress
