"""python -m bench train | topk-train | run | cuda | table | compare | plot"""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

from bench import _commands
from bench._arguments import natural, positive, rate, share
from bench._optimizers import BOTH, CHOICES

_IMPORTED_AS = {"scikit-learn": "sklearn"}  # a package's name where it is not its module's


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run what it names; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Jobs and measurements on sparsekit.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_train(commands)
    _add_topk_train(commands)
    _commands.add(commands)
    options = parser.parse_args(arguments)
    for package in options.needs:
        if importlib.util.find_spec(_IMPORTED_AS.get(package, package)) is None:
            parser.error(f"needs the package {package}: python -m pip install {package}")
    status: int = options.run(options, parser)
    return status


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "train word embeddings of real text with sparsekit's and torch's SparseAdam, and compare"
    parser = commands.add_parser("train", help=text, description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.set_defaults(run=_train, needs=("rich", "torch"))
    parser.add_argument("--text", type=Path, help="a UTF-8 file to train on; else Python's docstrings")
    parser.add_argument("--min-count", type=positive, default=1, help="leave out words that occur less often")
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--dim", type=positive, default=128, help="length of a word's vector")
    parser.add_argument("--batch", type=positive, default=4096, help="pairs of words in one step")
    parser.add_argument("--lr", type=rate, default=0.01)
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--threads", type=positive, help="threads of torch and of sparsekit; else the CPUs there are")
    parser.add_argument(
        "--optimizer",
        choices=("both", "all", *CHOICES),
        nargs="+",
        default=["both"],
        help='both: SparseAdam of sparsekit and of torch, which must agree; the others by name, or all; "sparsekit" and "torch" '
        "are those two",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, a line for each optimizer")


def _train(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    import rich.console
    import rich.markup

    import sparsekit
    from bench import _train
    from bench._contender import Job
    from bench._text import read_text

    start = time.perf_counter()
    console = rich.console.Console(highlight=False)
    _check_json(options, parser)
    try:
        text = read_text(options.text, min_count=options.min_count)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    source = options.text or "Python's docstrings and help topics"
    console.print(f"{rich.markup.escape(str(source))}: {len(text.ids):,} words, {len(text.words):,} distinct")
    job = Job(
        text=text,
        steps=options.steps,
        dim=options.dim,
        batch=options.batch,
        lr=options.lr,
        seed=options.seed,
        threads=options.threads or sparsekit.get_num_threads(),
    )
    console.print(f"{job.steps} steps of {job.batch} pairs, 5 negatives each; dim {job.dim}, lr {job.lr}, {job.threads} threads")
    meant = {"both": BOTH, "all": tuple(CHOICES)}
    names = tuple(dict.fromkeys(name for given in options.optimizer for name in meant.get(given, (given,))))
    results = _train.train(job, names, console)
    status = _train.show(job, results, console)
    if options.json:
        _train.write_json(options.json, job, results)
    console.print(f"{time.perf_counter() - start:.0f} s in all", style="dim")
    return status


def _add_topk_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "train networks on handwritten digits with Top-K gradients and densely, and compare their accuracies"
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = commands.add_parser("topk-train", help=text, description=text, formatter_class=formatter)
    parser.set_defaults(run=_topk_train, needs=("rich", "torch", "scikit-learn"))
    parser.add_argument("--ratio", type=share, default=0.01, help="share of the network's coordinates that Top-K keeps")
    parser.add_argument("--epochs", type=positive, default=30)
    parser.add_argument("--seeds", type=positive, default=4, help="runs of each method, with seeds from 0")
    parser.add_argument(
        "--lr", type=rate, help="of SGD, for every method; else for each the one that did best on the validation part"
    )
    parser.add_argument("--threads", type=positive, default=1, help="threads of torch and of sparsekit; the networks are small")
    parser.add_argument("--held-out", choices=("test", "validation"), default="test", help="validation: to choose options with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, a line for each network and method")


def _topk_train(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    # OpenMP reads it as torch loads: else torch's waiting threads spin on the cores that sparsekit's need, and the reverse.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from bench import _topk_train

    start = time.perf_counter()
    console = _commands.new_console()
    _check_json(options, parser)
    job = _topk_train.Job(**{field: getattr(options, field) for field in _topk_train.Job.__annotations__})
    console.print(_topk_train.describe(job))
    rows = _topk_train.train(job, console)
    status = _topk_train.show(job, rows, console)
    if options.json:
        _topk_train.write_json(options.json, job, rows)
    console.print(f"{time.perf_counter() - start:.0f} s in all", style="dim")
    return status


def _check_json(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")


if __name__ == "__main__":
    sys.exit(main())
