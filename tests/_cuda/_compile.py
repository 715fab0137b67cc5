"""NVRTC without a GPU, with the options and headers that CuPy gives it: PTX to run, machine code to measure."""

import functools
import importlib.util
import io
import re
import shutil
from typing import NamedTuple

ARCHITECTURES = ("75", "80", "90", "100", "120")
RUN = "80"  # what the tests run is compiled for this one
_OPTIONS = ("--std=c++17",)  # as in sparsekit_cupy._device


@functools.cache
def missing() -> str | None:
    """What kernels cannot be compiled and run for want of; None if all is there."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        _nvrtc_version()
        _options(RUN, "compute")
    except (ImportError, OSError, RuntimeError) as error:
        return f"NVRTC or CUDA's headers are not installed: {error}"
    if shutil.which("g++") is None:
        return "g++ is not installed"
    return None


@functools.cache
def versions() -> str:
    import cupy

    return f"CuPy {cupy.__version__}, NVRTC {_nvrtc_version()}"


def _nvrtc_version() -> tuple[int, int]:
    from cupy_backends.cuda.libs import nvrtc

    return nvrtc.getVersion()


def _options(architecture: str, kind: str) -> tuple[str, ...]:
    from cupy._core import core

    # cupy.cuda.compiler adds the same, but asks a device for its architecture.
    return (
        *core.assemble_cupy_compiler_options(_OPTIONS),
        "-ftz=true",
        f"-arch={kind}_{architecture}",
        "--device-as-default-execution-space",
    )


def _compile(source: str, file: str, names: tuple[str, ...], method: str, options: tuple[str, ...]):
    from cupy.cuda import compiler

    log = io.StringIO()
    program = compiler._NVRTCProgram(source, file, name_expressions=names, method=method)
    code, mapping = program.compile(options, log)
    return code, mapping, log.getvalue()


def ptx(source: str, file: str, name: str) -> tuple[str, str]:
    """PTX with source lines, and the kernel's mangled name in it."""
    code, mapping, _ = _compile(source, file, (name,), "ptx", (*_options(RUN, "compute"), "-lineinfo"))
    text = code.decode() if isinstance(code, bytes) else code
    return text.rstrip("\0"), mapping[name]


class Resources(NamedTuple):
    """What a thread of a kernel takes."""

    registers: int
    stack: int  # bytes of local memory
    spilled: int  # bytes stored and loaded for want of registers
    shared: int  # bytes of static shared memory, of the block


def resources(source: str, file: str, names: tuple[str, ...], architecture: str) -> dict[str, Resources]:
    """Of each of these kernels, as machine code for the architecture."""
    _, mapping, log = _compile(source, file, names, "cubin", (*_options(architecture, "sm"), "--ptxas-options=-v"))
    found = {}
    for entry in re.split(r"Compiling entry function ", log)[1:]:
        used = re.search(r"Used (\d+) registers", entry)
        properties = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        shared = re.search(r"(\d+) bytes smem", entry)
        stack, stores, loads = (int(n) for n in properties.groups())
        found[entry.split("'")[1]] = Resources(int(used[1]), stack, stores + loads, int(shared[1]) if shared else 0)
    return {name: found[mapping[name]] for name in names}
