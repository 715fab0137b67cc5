"""What sparsekit is to reach, and whether a run reached it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench._results import Cell, seconds

Measure = Callable[[Cell], float | None]


def _faster_than(contender: str) -> Measure:
    return lambda cell: cell.speedup(cell.timed(contender))


def _best_peer(cell: Cell) -> float | None:
    return cell.speedup(cell.best_peer)


def _time_of_torch(cell: Cell) -> float | None:
    speedup = cell.speedup(cell.timed("torch"))
    return 1 / speedup if speedup else None


def _over_floor(cell: Cell) -> float | None:
    return cell.times_floor


def _extra(cell: Cell) -> float | None:
    return cell.extra


def _milliseconds(cell: Cell) -> float | None:
    return 1e3 * seconds(cell.ours) if cell.ours else None


def _cost_of_checks(cell: Cell) -> float | None:
    speedup = cell.speedup(cell.timed("sparsekit, check=False"))
    return 1 / speedup - 1 if speedup else None


def _two_threads(cell: Cell) -> float | None:
    two = cell.ours is not None and cell.ours.threads == 2
    return cell.speedup(cell.one_thread) if two else None


@dataclass(frozen=True)
class Target:
    """A bound on a measure of all cases whose names match.

    cases : a regular expression for the whole of "operation name"
    unit : "x", "ms" or "%"
    """

    text: str
    cases: str
    measure: Measure
    limit: float
    unit: str = "x"
    at_least: bool = True


@dataclass(frozen=True)
class Verdict:
    """A target's figure in the worst of its cases; None where none was measured."""

    target: Target
    worst: float | None
    case: str
    missed: int
    measured: int

    @property
    def met(self) -> bool:
        return self.worst is not None and self.missed == 0


def _floor(text: str, cases: str, limit: float) -> Target:
    return Target(f"{text}: over the floor", cases, _over_floor, limit, at_least=False)


_SMALL, _MANY = "65536", "524288"
_ADAM = "sparse_adam_step (uniform|Zipf)"
_TOPK_LARGE = r"topk normal 25e6 k=(1000|1%)"
_TOPK_MILLION = r"topk normal 1e6 k=(1000|1%)"

TARGETS = (
    Target("coalesce 1e7: times scipy sum_duplicates", "coalesce uniform 1e7", _faster_than("scipy sum_duplicates"), 25),
    Target("coalesce 1e7: times torch", "coalesce uniform 1e7", _faster_than("torch"), 15),
    Target("coalesce 1e7: times the best peer", "coalesce uniform 1e7", _best_peer, 5),
    Target("coalesce 1e7: times the best peer, further goal", "coalesce uniform 1e7", _best_peer, 8),
    _floor("coalesce 1e7, further goal", "coalesce uniform 1e7", 4),
    Target("coalesce 1e6: times the best peer", "coalesce uniform 1e6", _best_peer, 6),
    Target("coalesce 1e5: times the best peer", "coalesce uniform 1e5", _best_peer, 3),
    Target("coalesce rows, Zipf: times torch", f"coalesce rows Zipf {_SMALL}", _faster_than("torch"), 6),
    _floor("coalesce rows, Zipf", f"coalesce rows Zipf {_SMALL}", 3),
    Target("topk 25e6: times torch", _TOPK_LARGE, _faster_than("torch"), 40),
    Target("topk 25e6: times NumPy", _TOPK_LARGE, _faster_than("numpy"), 15),
    _floor("topk 25e6", _TOPK_LARGE, 2),
    Target("topk 1e6: times torch", _TOPK_MILLION, _faster_than("torch"), 10),
    Target("topk 1e6: times NumPy", _TOPK_MILLION, _faster_than("numpy"), 5),
    Target("topk of ResNet-50's list: times torch", "topk ResNet-50 k=1%", _faster_than("torch"), 30),
    Target("sparse_adam_step 65536: times torch", f"{_ADAM} {_SMALL}", _faster_than("torch"), 8),
    _floor("sparse_adam_step 65536", f"{_ADAM} {_SMALL}", 2.5),
    Target("sparse_adam_step 524288: times torch", f"{_ADAM} {_MANY}", _faster_than("torch"), 8),
    _floor("sparse_adam_step 524288", f"{_ADAM} {_MANY}", 2),
    Target("small calls: time over torch's", r"coalesce small \d+", _time_of_torch, 1.5, at_least=False),
    Target("import, over numpy's", "import over numpy", _milliseconds, 50, "ms", at_least=False),
    Target("first call, over numba's import", r"first_call \w+", _milliseconds, 300, "ms", at_least=False),
    Target("cost of index checks, coalesce 1e7", "coalesce uniform 1e7", _cost_of_checks, 0.03, "%", at_least=False),
    Target("extra memory over input, coalesce", "coalesce (?!small).*", _extra, 2.5, at_least=False),
    Target("extra memory over input, topk", r"topk (?!small).* k=(1000|0\.1%|1%)", _extra, 0.05, "%", at_least=False),
    Target("extra memory over input, sparse_adam_step", "sparse_adam_step (?!small).*", _extra, 1, at_least=False),
    Target(
        "two threads over one", r"(coalesce|topk|topk_mask|sparse_adam_step) .*(1e6|1e7|25e6|524288|ResNet).*", _two_threads, 1.7
    ),
    Target("no peer faster by more than 10 %", "(?!import|first_call).*", _best_peer, 0.9),
)

_CUDA_COALESCE = "cuda coalesce (uniform 1e7|rows .*)"
_CUDA_ADAM = "cuda sparse_adam_step .* 524288"

CUDA_TARGETS = (  # on a device of the class of NVIDIA's H200
    Target("coalesce: times torch", _CUDA_COALESCE, _faster_than("torch"), 2),
    Target("coalesce 1e7: times cupyx", "cuda coalesce uniform 1e7", _faster_than("cupyx sum_duplicates"), 4),
    Target("topk: times torch", "cuda topk .*", _faster_than("torch"), 3),
    _floor("topk", "cuda topk .*", 2.5),
    Target("sparse_adam_step 524288: times torch", _CUDA_ADAM, _faster_than("torch"), 5),
    _floor("sparse_adam_step 524288", _CUDA_ADAM, 2),
)


def targets_of(cells: Iterable[Cell]) -> tuple[Target, ...]:
    """The targets of the kind of machine that the cells were measured on."""
    return CUDA_TARGETS if any(cell.key.startswith("cuda ") for cell in cells) else TARGETS


def judge(cells: Iterable[Cell], targets: Iterable[Target] | None = None) -> list[Verdict]:
    """Each target's worst figure over the measured cells."""
    cells = list(cells)
    return [_judge(target, cells) for target in (targets_of(cells) if targets is None else targets)]


def _judge(target: Target, cells: list[Cell]) -> Verdict:
    figures = []
    for cell in cells:
        figure = target.measure(cell) if re.fullmatch(target.cases, cell.key) else None
        if figure is not None:
            figures.append((figure, cell.key))
    if not figures:
        return Verdict(target, None, "", 0, 0)
    worst, case = min(figures) if target.at_least else max(figures)
    missed = sum(figure < target.limit if target.at_least else figure > target.limit for figure, _ in figures)
    return Verdict(target, worst, case, missed, len(figures))
