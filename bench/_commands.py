"""The measurements' commands: run, cuda, table, compare, plot."""

import argparse
import importlib.util
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._arguments import positive

if TYPE_CHECKING:
    from rich.console import Console

    from bench._case import Case
    from bench._results import Row

_RESULTS = Path(__file__).parent / "results"
_CORE = ("numpy", "numba", "scipy", "torch", "ml_dtypes")
_PEERS = ("sparse", "polars", "torch-geometric", "python-graphblas", "scikit-fem", "scikit-learn")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parsers of the measurements' commands."""
    run = _parser(commands, "run", _run, "time sparsekit and its peers, and show who reached what")
    run.add_argument("--quick", action="store_true", help="a part of the cases, and fewer rounds")
    run.add_argument("--only", type=_pattern, metavar="PATTERN", help="cases whose name matches this regular expression")
    run.add_argument("--peers", type=_pattern, metavar="PATTERN", help="peers whose name matches, beside sparsekit; else all")
    run.add_argument("--rounds", type=positive, help="turns of each contender; else 9, or 5 with --quick")
    run.add_argument("--threads", type=positive, help="threads of every contender; else the CPUs there are")
    run.add_argument("--json", type=Path, metavar="FILE", help="write results there; else bench/results/DATE-COMMIT.jsonl")
    run.add_argument("--list", action="store_true", help="name the cases, run nothing")

    cuda = _parser(commands, "cuda", _cuda, "time sparsekit on CuPy arrays against torch CUDA and cupyx", needs=("rich", "cupy"))
    cuda.add_argument("--only", type=_pattern, metavar="PATTERN", help="cases whose name matches this regular expression")
    cuda.add_argument("--rounds", type=positive, default=7, help="turns of each contender")
    cuda.add_argument("--json", type=Path, metavar="FILE", help="write results there; else bench/results/DATE-COMMIT.jsonl")

    table = _parser(commands, "table", _table, "print the results of a run in Markdown")
    table.add_argument("file", type=Path)
    table.add_argument("--all", action="store_true", help="every contender's times as well")

    compare = _parser(commands, "compare", _compare, "show what changed between two runs")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)

    plot = _parser(commands, "plot", _plot, "draw the times over the size, a chart for each operation", needs=("matplotlib",))
    plot.add_argument("file", type=Path)
    plot.add_argument("--to", type=Path, default=_RESULTS, metavar="FOLDER", help="for the PNG and SVG files")


def _parser(commands: Any, name: str, run: Any, text: str, needs: tuple[str, ...] = ("rich",)) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run, needs=needs)
    return parser


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"expected a regular expression, got {text!r}: {error}") from None


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    import sparsekit
    from bench import _machine
    from bench._case import FAILED, WRONG
    from bench._operations import OPERATIONS

    start = time.perf_counter()
    cases = [case for operation in OPERATIONS.values() for case in operation.cases if not options.quick or case.quick]
    if options.only:
        cases = [case for case in cases if options.only.search(case.key)]
    if not cases:
        parser.error("no case matches --only; --list names them")
    if options.list:
        print("\n".join(case.key for case in cases))
        return 0
    if importlib.util.find_spec("numba") is None:
        parser.error("needs the package numba: python -m pip install numba")
    console = new_console()
    machine = _machine.describe(_CORE + _PEERS)
    file = _open(options, parser, machine)
    try:
        rows = _measure(cases, options, options.threads or sparsekit.get_num_threads(), machine, file, console)
    except KeyboardInterrupt:
        console.print(f"interrupted; the cases that were done are in {file}", soft_wrap=True)
        return 130
    _show(rows, console)
    console.print(f"{len(rows)} rows in {file}; {time.perf_counter() - start:.0f} s in all", style="dim", soft_wrap=True)
    wrong = [row for row in rows if row.ours and row.status in (WRONG, FAILED)]
    return 1 if wrong else 0


def _open(options: argparse.Namespace, parser: argparse.ArgumentParser, machine: dict[str, Any]) -> Path:
    """The empty file for the rows, which will all tell the date of now."""
    now = datetime.now(UTC)
    machine["date"] = now.isoformat(timespec="seconds")
    file: Path = options.json or _new_file(now, str(machine["commit"]))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    except OSError as error:
        parser.error(f"--json: {error}")
    return file


def _cuda(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from bench import _cuda, _machine, _results, cuda
    from bench._case import FAILED, WRONG

    start = time.perf_counter()
    if not _cuda.cupy().cuda.is_available():
        parser.error("no CUDA device was found")
    console = new_console()
    machine = _machine.describe((*_CORE, "cupy-cuda12x", "cupy-cuda13x")) | _cuda.describe()
    file = _open(options, parser, machine)
    clock = _cuda.event_clock()
    rows: list[Row] = []
    for operation in _cuda.OPERATIONS:
        for case in operation.cases:
            if options.only and not options.only.search(case.key):
                continue
            console.print(f"{case.key} ({time.perf_counter() - start:.0f} s)", style="dim")
            found = cuda.measure(operation, case, clock, options.rounds, machine)
            _results.write(file, found)
            rows += found
    if not rows:
        parser.error("no case matches --only")
    _show(rows, console)
    console.print(f"{len(rows)} rows in {file}; {time.perf_counter() - start:.0f} s in all", style="dim", soft_wrap=True)
    return 1 if any(row.ours and row.status in (WRONG, FAILED) for row in rows) else 0


def _measure(
    cases: "list[Case]", options: argparse.Namespace, threads: int, machine: dict[str, Any], file: Path, console: "Console"
) -> "list[Row]":
    """Run the cases with a progress bar; every case's rows are in the file when the next begins."""
    from dataclasses import replace

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from bench import _results
    from bench._operations import OPERATIONS
    from bench._ours import ONE_THREAD
    from bench.run import FULL, QUICK, Run

    plan = QUICK if options.quick else FULL
    if options.rounds:
        plan = replace(plan, rounds=options.rounds)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    # No refresh by itself: its thread would run inside the times.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(cases))
        current = ""

        def report(text: str) -> None:
            progress.update(bar, description=f"{current}: {text}", refresh=True)

        with Run(plan, threads, machine, report) as run:
            for case in cases:
                current = case.key
                contenders = [
                    contender
                    for contender in OPERATIONS[case.operation].contenders
                    if (contender.ours or options.peers is None or options.peers.search(contender.name))
                    and (contender.name != ONE_THREAD or threads > 1)
                ]
                found = run.measure(case, contenders)
                _results.write(file, found)
                rows += found
                progress.update(bar, advance=1)
    return rows


def new_console() -> "Console":
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=150)


def _new_file(now: datetime, commit: str) -> Path:
    """A file that is not there yet."""
    stem = f"{now:%Y-%m-%d}-{commit[:12]}{'-dirty' if commit.endswith('-dirty') else ''}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(path for path in (_RESULTS / f"{name}.jsonl" for name in names) if not path.exists())


def _show(rows: "list[Row]", console: "Console") -> None:
    from bench import _tables
    from bench._results import cells

    console.print(_tables.machine(rows), style="dim")
    measured = cells(rows)
    for table in (_tables.summary(measured), _tables.not_timed(rows), _tables.targets(measured)):
        if table.rows:
            _tables.print_rich(table, console)


def _read(path: Path, parser: argparse.ArgumentParser) -> "list[Row]":
    from bench import _results

    try:
        return _results.read(path)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _table(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from bench import _tables
    from bench._results import cells

    rows = _read(options.file, parser)
    measured = cells(rows)
    tables = [_tables.targets(measured), _tables.summary(measured, quartiles=True), _tables.not_timed(rows)]
    if options.all:
        tables.append(_tables.everyone(measured))
    print(_tables.machine(rows))
    for table in tables:
        if table.rows:
            print(f"\n{_tables.markdown(table)}")
    return 0


def _compare(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from bench import _tables, compare

    before, after = _read(options.before, parser), _read(options.after, parser)
    console = new_console()
    console.print(f"before: {_tables.machine(before)}\nafter:  {_tables.machine(after)}", style="dim")
    found, notes = compare.changes(before, after)
    _tables.print_rich(compare.table(found), console)
    for note in notes:
        console.print(note, style="dim", markup=False)
    return 0


def _plot(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from bench import plot

    rows = _read(options.file, parser)
    options.to.mkdir(parents=True, exist_ok=True)
    files = plot.draw(rows, options.to)
    if not files:
        parser.error(f"{options.file}: expected a series of cases of at least two sizes to draw, got none")
    print("\n".join(str(file) for file in files))
    return 0
