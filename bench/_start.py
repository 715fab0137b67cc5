"""import, and the first call with a warm compilation cache: each in a new process."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench._case import Arrays, Case, Contender, Operation, Prepared
from bench._ours import OURS, REFERENCE

_ROOT = Path(__file__).resolve().parent.parent
_TIMED = """
import time
{before}
start = time.perf_counter()
{timed}
print(time.perf_counter() - start)
"""
_DRAW = """
import numpy
rng = numpy.random.default_rng(0)
ids, x = rng.integers(0, 1000, (1, 1000)), rng.standard_normal((1000, 8), numpy.float32)
p, m, v = (rng.random((1000, 8), numpy.float32) for _ in range(3))
"""
_CALLS = {
    "coalesce": "sparsekit.coalesce(ids, x, (1000, 8), backend=backend)",
    "topk": "sparsekit.topk(x, 80, backend=backend)",
    "sparse_adam_step": "sparsekit.sparse_adam_step(p, m, v, ids, x, step=1, backend=backend)",
}
_TORCH_CALLS = {
    "coalesce": "torch.sparse_coo_tensor(ids, x, (1000, 8), check_invariants=False).coalesce()",
    "topk": "x.abs().flatten().topk(80)",
    "sparse_adam_step": """
p.grad = torch.sparse_coo_tensor(ids, x, (1000, 8), check_invariants=False)
torch.optim.SparseAdam([p]).step()""",
}
_PEERS = {
    "numba": "import numba",
    "scipy": "import scipy.sparse",
    "torch": "import torch",
}


def _script(before: str, timed: str) -> Prepared:
    """A new process that runs ``before``, then prints the seconds that ``timed`` takes."""
    code = _TIMED.format(before=before, timed=timed)
    paths = [str(_ROOT), str(_ROOT / "backends"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def call(_: None) -> float:
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            kind = ImportError if "ModuleNotFoundError" in done.stderr else RuntimeError
            raise kind(last[0] if last else f"exit code {done.returncode}")
        return float(done.stdout)

    return Prepared(call, lambda _: {}, elapsed=lambda seconds: seconds)


def _import(case: Case, inputs: Arrays, *, line: str) -> Prepared:
    return _script("import numpy", line)


def _first_call(case: Case, inputs: Arrays, *, backend: str, requirement: str) -> Prepared:
    """import sparsekit, and the call; what its backend is made with is imported before."""
    return _script(f"import {requirement}\n{_DRAW}\nbackend = {backend!r}", f"import sparsekit\n{_CALLS[case.name]}")


def _first_torch_call(case: Case, inputs: Arrays) -> Prepared:
    tensors = "ids, x = torch.from_numpy(ids), torch.from_numpy(x)\np = torch.nn.Parameter(torch.from_numpy(p))"
    return _script(f"import torch\n{_DRAW}\n{tensors}", _TORCH_CALLS[case.name])


def _draw() -> Arrays:
    return {}


def _expect(case: Case, inputs: Arrays) -> Arrays:
    return {}


def _check(case: Case, inputs: Arrays, expected: Arrays, result: Arrays) -> None:
    """There is nothing to check but that the process ended well."""


def _floor_bytes(case: Case, inputs: Arrays, expected: Arrays) -> int:
    return 0


IMPORT = Operation(
    "import",
    (Case("import", "over numpy", 0, _draw, quick=True),),
    (
        Contender(OURS, partial(_import, line="import sparsekit"), ours=True),
        *(Contender(name, partial(_import, line=line)) for name, line in _PEERS.items()),
    ),
    _expect,
    _check,
    _floor_bytes,
)

FIRST_CALL = Operation(
    "first_call",
    tuple(Case("first_call", name, 1000, _draw, quick=name == "coalesce") for name in _CALLS),
    (
        Contender(OURS, partial(_first_call, backend="numba", requirement="numba"), ours=True),
        Contender(REFERENCE, partial(_first_call, backend="scipy", requirement="scipy.sparse"), ours=True),
        Contender("torch", _first_torch_call),
    ),
    _expect,
    _check,
    _floor_bytes,
)
