"""What a measurement was taken on."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

_PACKAGES = ("numpy", "numba", "torch")


def describe(packages: tuple[str, ...] = _PACKAGES) -> dict[str, object]:
    """Commit, versions, CPU and the OpenMP wait policy, for a row of results; None where it cannot be known."""
    import sparsekit

    versions = {"python": platform.python_version(), "sparsekit": sparsekit.__version__}
    return {
        "commit": _commit(),
        "versions": versions | {name: _version(name) for name in packages},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=here, capture_output=True, text=True)
    except OSError:
        return None
    return git.stdout.strip() or None


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None
