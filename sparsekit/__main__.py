"""python -m sparsekit info | warmup"""

import argparse
import importlib.metadata
import platform
import time

import sparsekit
from sparsekit import _registry

_PACKAGES = ("numpy", "numba", "scipy", "torch", "cupy")


def info() -> None:
    """Print what there is: versions, backends, devices, threads, cache folder."""

    def line(name: str, text: object) -> None:
        print(f"{name:<14}{text}")

    line("sparsekit", sparsekit.__version__)
    line("python", f"{platform.python_version()} on {platform.platform()}")
    for package in _PACKAGES:
        try:
            line(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            line(package, "not installed")
    for name in sparsekit.available_backends():
        backend = _registry.load(name)
        notes = [", ".join(backend.devices)]
        # What a backend keeps on disk is its own affair; one that keeps something tells where.
        cache_folder = getattr(backend, "cache_folder", None)
        if cache_folder is not None:
            notes.append(f"compiled kernels in {cache_folder() or 'memory only (no folder can be written)'}")
        line("backend", f"{name}: " + "; ".join(notes))
    line("threads", sparsekit.get_num_threads())


def warmup() -> None:
    """Compile the kernels of every backend for the common dtypes, so that later processes find them on disk."""
    for name in sparsekit.available_backends():
        start = time.perf_counter()
        _registry.load(name).warmup()
        print(f"{name}: ready after {time.perf_counter() - start:.1f} s")


def main() -> None:
    commands = {"info": info, "warmup": warmup}
    parser = argparse.ArgumentParser(prog="python -m sparsekit", description="sparsekit: what is here, and getting it ready.")
    parser.add_argument("command", choices=commands, help="info: print what is here; warmup: compile ahead of first use")
    commands[parser.parse_args().command]()


if __name__ == "__main__":
    main()
