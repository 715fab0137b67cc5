"""One contender: a process of its own that trains the embeddings with one optimizer and times its steps."""

import multiprocessing
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from bench import _machine
from bench._optimizers import CHOICES, state_bytes
from bench._pairs import EVALUATION, TRAINING, Pairs
from bench._text import Text

_EVALUATION_BATCHES = 4


@dataclass(frozen=True)
class Job:
    """What is to be trained; the same for every contender."""

    text: Text
    steps: int
    dim: int
    batch: int
    lr: float
    seed: int
    threads: int


@dataclass(frozen=True)
class Result:
    """What came of it: times in seconds for each step, losses as the mean per pair, and the input vectors (V, dim)."""

    name: str
    optimizer_times: list[float]
    step_times: list[float]
    losses: list[float]
    start_loss: float
    final_loss: float
    batches_crc32: int
    vectors: np.ndarray[Any, np.dtype[np.float32]]
    state_bytes: int
    machine: dict[str, object]


class Training:
    """The model, its optimizer and the batches. Needs torch; the process's torch thread count is set."""

    def __init__(self, job: Job, name: str) -> None:
        import torch

        torch.set_num_threads(job.threads)
        self._torch = torch
        self._name = name
        self._pairs = Pairs(job.text, batch=job.batch, seed=job.seed)
        self._inputs = torch.nn.Embedding(len(job.text.words), job.dim, sparse=True)
        self._outputs = torch.nn.Embedding(len(job.text.words), job.dim, sparse=True)
        # word2vec's start: small random input vectors, output vectors of zeros.
        generator = torch.Generator().manual_seed(job.seed)
        torch.nn.init.uniform_(self._inputs.weight, -0.5 / job.dim, 0.5 / job.dim, generator=generator)
        torch.nn.init.zeros_(self._outputs.weight)
        parameters = [self._inputs.weight, self._outputs.weight]
        if CHOICES[name].library == "sparsekit":
            import sparsekit

            sparsekit.set_num_threads(job.threads)
        self._optimizer = CHOICES[name].make(parameters, job.lr)
        self._optimizer_times: list[float] = []
        self._step_times: list[float] = []
        self._losses: list[float] = []
        self._crc32 = 0
        self._start_loss = self._evaluate()

    def step(self) -> float:
        """Train on the next batch; return its mean loss per pair. Drawing the batch is outside the times."""
        centres, targets = self._pairs.batch(TRAINING, len(self._losses))
        self._crc32 = zlib.crc32(targets.tobytes(), zlib.crc32(centres.tobytes(), self._crc32))

        start = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._loss(centres, targets)
        loss.backward()
        before_update = time.perf_counter()
        self._optimizer.step()
        end = time.perf_counter()

        self._optimizer_times.append(end - before_update)
        self._step_times.append(end - start)
        self._losses.append(loss.item() / len(centres))
        return self._losses[-1]

    def result(self) -> Result:
        if hasattr(self._optimizer, "flush"):  # rows that wait for their updates
            self._optimizer.flush()
        return Result(
            self._name,
            self._optimizer_times,
            self._step_times,
            self._losses,
            self._start_loss,
            self._evaluate(),
            self._crc32,
            self._inputs.weight.detach().numpy(),
            state_bytes(self._optimizer),
            _machine.describe(),
        )

    def _loss(self, centres: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> Any:
        """Sum over the pairs of -log sigmoid(u.v) - sum over the negatives n of log sigmoid(-u.n)."""
        u = self._inputs(self._torch.from_numpy(centres))
        v = self._outputs(self._torch.from_numpy(targets))
        scores = self._torch.bmm(v, u.unsqueeze(2)).squeeze(2)
        log_sigmoid = self._torch.nn.functional.logsigmoid
        return -(log_sigmoid(scores[:, 0]).sum() + log_sigmoid(-scores[:, 1:]).sum())

    def _evaluate(self) -> float:
        """Mean loss per pair over a few batches that training does not draw."""
        total, pairs = 0.0, 0
        with self._torch.no_grad():
            for number in range(_EVALUATION_BATCHES):
                centres, targets = self._pairs.batch(EVALUATION, number)
                total += self._loss(centres, targets).item()
                pairs += len(centres)
        return total / pairs


class Contender:
    """A handle on the process of one contender, which works only while the caller waits for it."""

    def __init__(self, job: Job, name: str) -> None:
        context = multiprocessing.get_context("spawn")  # a fresh interpreter: no thread pool of another library in it
        self._name = name
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, job, name), daemon=True)
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Return when the process has loaded what it needs and stands ready."""
        self._receive()

    def train(self, steps: int) -> Iterator[float]:
        """Train ``steps`` steps; yields the loss after each."""
        self._send(steps)
        for _ in range(steps):
            yield self._receive()

    def finish(self) -> Result:
        """End the process and return what it has measured."""
        self._send(0)
        result: Result = self._receive()
        self._process.join()
        return result

    def _send(self, steps: int) -> None:
        try:
            self._connection.send(steps)
        except OSError:
            self._fail()

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self._fail()

    def _fail(self) -> NoReturn:
        self._process.join()
        raise RuntimeError(f"the {self._name} contender ended early, exit code {self._process.exitcode}; see its error")


def _serve(connection: "Connection[Any, Any]", job: Job, name: str) -> None:
    # OpenMP reads it as torch loads. By default waiting threads spin: should anything else run on the machine, torch's
    # own step then takes ten times as long, and sparsekit's threads must share the cores with the spinning ones.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    training = Training(job, name)
    connection.send("ready")
    try:
        while steps := connection.recv():
            for _ in range(steps):
                connection.send(training.step())
        connection.send(training.result())
    except (EOFError, BrokenPipeError):
        pass  # the caller has given up, and has said why
