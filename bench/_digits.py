"""Handwritten digits, two small networks for them, and one training run of a network by one method."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sklearn.datasets
import sklearn.model_selection
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from sparsekit.torch import TopK

PARTS = {"training": 997, "validation": 300, "test": 500}
BATCH = 64
MOMENTUM = 0.9
DENSE, FEEDBACK, NO_FEEDBACK = "dense", "Top-K, error feedback", "Top-K, no error feedback"
_CORRECTION = {"momentum_correction": MOMENTUM, "momentum_masking": False}
_MASKING = {"momentum_correction": MOMENTUM}
# What TopK is told beside the ratio. After error feedback, each adds a part of Deep Gradient Compression; dense has no TopK.
METHODS: dict[str, dict[str, Any] | None] = {
    DENSE: None,
    FEEDBACK: {},
    "Top-K, correction": _CORRECTION,
    "Top-K, correction, masking": _MASKING,
    "Top-K, correction, masking, warm-up": {**_MASKING, "warmup": True},
    NO_FEEDBACK: {"error_feedback": False},
}

# Tried for every method in 30 epochs from each of 5 seeds, ratio 1 %; the best mean accuracy on the validation part was chosen:
# python -m bench topk-train --held-out validation --seeds 5 --lr LR
TRIED = (0.05, 0.1, 0.2, 0.4)
LEARNING_RATES = {
    "MLP": dict(zip(METHODS, (0.2, 0.1, 0.1, 0.4, 0.4, 0.2), strict=True)),
    "convolutional": dict(zip(METHODS, (0.1, 0.1, 0.1, 0.4, 0.4, 0.1), strict=True)),
}


@dataclass(frozen=True)
class Split:
    """Images as float32 (n, 1, 8, 8) in [0, 1] and their labels: to train on, and held out of the training."""

    images: Tensor
    labels: Tensor
    held_images: Tensor
    held_labels: Tensor


@dataclass(frozen=True)
class Run:
    """What came of one run: accuracy in % on what was held out; for each step the coordinates sent and times in seconds."""

    lr: float
    accuracy: float
    sent: list[int]
    step_times: list[float]
    optimizer_times: list[float]


def load_split(held_out: str) -> Split:
    """Held out "validation": trained on the training part. Held out "test": trained on that and the validation part.

    The parts are random, with an equal share of each digit, and the same every time.
    """
    digits = sklearn.datasets.load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    rest, test = _part(range(len(labels)), labels, PARTS["test"])
    training, validation = _part(rest, labels, PARTS["validation"])
    here, held = {"validation": (training, validation), "test": (rest, test)}[held_out]
    return Split(images[here], labels[here], images[held], labels[held])


def _part(numbers: Any, labels: Tensor, held: int) -> list[list[int]]:
    parts: list[list[int]] = sklearn.model_selection.train_test_split(
        list(numbers), test_size=held, stratify=labels[list(numbers)], random_state=0
    )
    return parts


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"MLP": perceptron, "convolutional": convolutional}


def size(model: str) -> int:
    """The number of the network's coordinates."""
    return sum(p.numel() for p in MODELS[model]().parameters())


def steps_per_epoch(split: Split) -> int:
    """Whole batches only."""
    return len(split.labels) // BATCH


class Training:
    """A network, an optimizer and the batches; the seed alone decides the network's start and the order of the images.

    The learning rate falls from lr to 0 over the epochs, as half a cosine.
    """

    def __init__(self, split: Split, model: str, method: str, *, ratio: float, lr: float, epochs: int, seed: int) -> None:
        self._split = split
        self._lr = lr
        torch.manual_seed(seed)
        self._network = MODELS[model]()
        self._parameters = list(self._network.parameters())
        self._order = torch.Generator().manual_seed(seed)
        self._batches = self._shuffled()
        self._optimizer = _optimizer(method, self._parameters, ratio, lr, warmup=steps_per_epoch(split))
        self._schedule = CosineAnnealingLR(self._optimizer, epochs * steps_per_epoch(split))
        self._sent: list[int] = []
        self._step_times: list[float] = []
        self._optimizer_times: list[float] = []
        # In every method alike, so that it is in the times of all.
        getattr(self._optimizer, "base", self._optimizer).register_step_pre_hook(self._count)

    def step(self) -> None:
        images, labels = next(self._batches)
        start = time.perf_counter()
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        before_update = time.perf_counter()
        self._optimizer.step()
        end = time.perf_counter()
        self._schedule.step()
        self._step_times.append(end - start)
        self._optimizer_times.append(end - before_update)

    @torch.no_grad()
    def result(self) -> Run:
        right = self._network(self._split.held_images).argmax(1) == self._split.held_labels
        return Run(self._lr, 100 * right.double().mean().item(), self._sent, self._step_times, self._optimizer_times)

    def _count(self, *_: Any) -> None:
        """The nonzero coordinates that the update is about to see: of TopK's optimizer, what would be sent to other workers."""
        self._sent.append(sum(int(torch.count_nonzero(p.grad)) for p in self._parameters if p.grad is not None))

    def _shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            order = torch.randperm(len(self._split.labels), generator=self._order)
            for batch in itertools.islice(torch.split(order, BATCH), steps_per_epoch(self._split)):
                yield self._split.images[batch], self._split.labels[batch]


def _optimizer(method: str, parameters: list[nn.Parameter], ratio: float, lr: float, warmup: int) -> torch.optim.Optimizer:
    """SGD with momentum, or TopK around it; with momentum correction the momentum is TopK's."""
    options = METHODS[method]
    if options is None:
        return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM)
    momentum = 0.0 if "momentum_correction" in options else MOMENTUM
    if "warmup" in options:
        options = {**options, "warmup": warmup}
    return TopK(torch.optim.SGD(parameters, lr=lr, momentum=momentum), ratio=ratio, **options)
