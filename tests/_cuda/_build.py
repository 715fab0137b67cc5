"""Shared libraries of the runtime and of kernels, built by g++ and kept by the hash of all that goes into them."""

import ctypes
import functools
import hashlib
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from _cuda import _compile, _ptx

_FOLDER = Path(__file__).parent
_SOURCES = sorted((*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h"), *_FOLDER.glob("*.py")))
_GXX = ("g++", "-std=c++17", "-shared", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti")
# For kernels what counts is the time to compile: they run a few times on small arrays.
_GXX_KERNEL = (*_GXX, "-O1", "-w", "-fno-asynchronous-unwind-tables", "-nostdlib", f"-I{_FOLDER}")


@functools.cache
def _cache() -> Path:
    parent = os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir()
    folder = Path(parent, f"sparsekit-cuda-tests-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


@functools.cache
def _stamp() -> bytes:
    texts = (platform.machine(), _compile.versions(), *(path.read_text(encoding="utf-8") for path in _SOURCES))
    return hashlib.sha256("\0".join(texts).encode()).digest()


def _kept(key: tuple[str, ...], suffix: str, make: Callable[[Path], None]) -> Path:
    """The file of this key, made if it is not there. Two processes may both make it: the last one's stays."""
    name = hashlib.sha256(_stamp() + "\0".join(key).encode()).hexdigest()[:32] + suffix
    path = _cache() / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            make(Path(folder, name))
            os.replace(Path(folder, name), path)
    return path


def _run(*command: str | Path, text: str | None = None) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"g++ failed:\n{done.stderr}")


@functools.cache
def runtime() -> ctypes.PyDLL:
    """What all kernels share. A PyDLL: one launch at a time, for the runtime has one set of fibers."""

    def make(path: Path) -> None:
        _run(*_GXX, "-O2", *_FOLDER.glob("*.cpp"), "-lm", "-o", path)

    library = ctypes.PyDLL(str(_kept(("runtime",), ".so", make)), mode=ctypes.RTLD_GLOBAL)  # kernels look its names up
    library.gpu_report.restype = ctypes.c_char_p
    return library


def kernel(source: str, file: str, name: str) -> tuple[ctypes.PyDLL, _ptx.Kernel]:
    """The kernel as a library with a function ``gpu_kernel``, and what the translator tells of it."""

    def make_description(path: Path) -> None:
        ptx, entry = _compile.ptx(source, file, name)
        path.write_text(json.dumps(vars(_ptx.translate(ptx, entry))), encoding="utf-8")

    def make_library(path: Path) -> None:
        _run(*_GXX_KERNEL, "-x", "c++", "-", "-o", path, "-lgcc", text=translated.text)

    key = (source, file, name)
    translated = _ptx.Kernel(**json.loads(_kept(key, ".json", make_description).read_text(encoding="utf-8")))
    runtime()
    return ctypes.PyDLL(str(_kept(key, ".so", make_library))), translated
