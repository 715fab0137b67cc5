"""The CUDA device as the driver code sees it: an array namespace, a compiler, a launch. In tests a stand-in without a GPU."""

import functools
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_FOLDER = pathlib.Path(__file__).parent
_BLOCKS_PER_MULTIPROCESSOR = 8  # of 256 threads: all that one holds


class Device:
    """One CUDA device. Driver code takes CuPy from here and never imports it."""

    def __init__(self, xp: Any, module: Callable[[str, str, tuple[str, ...]], Any], multiprocessors: int):
        self.xp = xp  # the array namespace
        self.multiprocessors = multiprocessors
        self._module = module  # (source, file name, name expressions) -> as cupy.RawModule
        self._kernels: dict[tuple[str, str], Any] = {}

    def kernel(self, file: str, name: str) -> Any:
        """A kernel of a ``.cu`` file of this folder, compiled on first use; ``name`` may be a template's instance."""
        found = self._kernels.get((file, name))
        if found is None:
            found = self._kernels[file, name] = self._module(source(file), file, (name,)).get_function(name)
        return found

    def blocks(self, work: int, per_block: int = 256) -> int:
        """How many blocks to launch for so much work, where each loops over what is left (a grid-stride loop)."""
        return max(1, min(-(-work // per_block), _BLOCKS_PER_MULTIPROCESSOR * self.multiprocessors))

    def launch(
        self,
        file: str,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Any],
        reach: Sequence[Any] = (),
    ) -> None:
        """Queue a kernel on the current stream. Ints go in as int64, floats as float64: CuPy checks no types.

        ``reach`` names arrays that the kernel reaches by addresses stored in another one.
        """
        typed = tuple(_TYPES[type(a)](a) if type(a) in _TYPES else a for a in args)
        grid, block = ((n,) if isinstance(n, int) else n for n in (grid, block))
        self.queue(self.kernel(file, name), grid, block, typed, reach)

    def queue(
        self, kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], reach: Sequence[Any]
    ) -> None:
        kernel(grid, block, args)  # the tests' harness also looks at what is within reach


_TYPES: dict[type, Callable[[Any], Any]] = {int: np.int64, float: np.float64}


@functools.cache
def source(file: str) -> str:
    """A ``.cu`` file with its headers written out: CuPy's cache of compiled kernels looks at the source alone."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    return re.sub(r'^#include "(.*)"$', lambda match: source(match[1]).replace("#pragma once", ""), text, flags=re.MULTILINE)


@functools.cache
def _cuda(number: int) -> Device:
    import cupy

    def module(text: str, file: str, names: tuple[str, ...]) -> Any:
        return cupy.RawModule(code=text, options=("--std=c++17",), name_expressions=names)

    return Device(cupy, module, cupy.cuda.Device(number).attributes["MultiProcessorCount"])


def _find_cuda() -> Device:
    import cupy

    return _cuda(cupy.cuda.runtime.getDevice())


find: Callable[[], Device] = _find_cuda  # tests put a stand-in here


def missing() -> str | None:
    """Why the backend cannot run here, or None."""
    import cupy

    return None if find is not _find_cuda or cupy.cuda.is_available() else "CuPy finds no CUDA device, or no driver for one"


def current() -> Device:
    """The current CUDA device, with its compiled kernels."""
    return find()
