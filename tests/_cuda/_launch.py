"""Modules and kernels with the call shape of ``cupy.RawModule`` and ``cupy.RawKernel``, run on the CPU under the checker."""

import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from _cuda import _build, _signature

_REACHED, _SHARED, _VARIABLE = -1, -2, -3  # as in launch.h
_MOST_SHARED = 48 << 10  # bytes, without asking for more
_ORDERS = {"forward": 0, "reverse": 1, "random": 2}


class KernelError(RuntimeError):
    """A launch that no GPU would take, or an error of the kernel that the checker found."""


@dataclass
class Schedule:
    """In which order blocks and threads run."""

    order: str = "forward"  # or "reverse", "random"
    seed: int = 0
    preempt: int = 0  # one memory access in so many hands over to another thread; 0: threads run until they wait


class _Region(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("argument", ctypes.c_int32))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("regions", ctypes.POINTER(_Region)),
        ("region_count", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
        ("preempt", ctypes.c_uint32),
    )


class Module:
    """The kernels of a source. ``names`` are compiled each by itself, on first use."""

    def __init__(self, source: str, file: str, names: Iterable[str] = ()):
        self._source, self._file, self._names = source, file, tuple(names)

    def get_function(self, name: str) -> "Kernel":
        if self._names and name not in self._names:
            raise LookupError(f"{name} is not among {self._names}")
        return Kernel(self._source, self._file, name)


class Kernel:
    def __init__(self, source: str, file: str, name: str):
        self.name = name
        self.max_dynamic_shared_size_bytes = _MOST_SHARED
        self._source, self._file = source, file
        self._library, self._translated = _build.kernel(source, file, name)
        self._parameters = _signature.parameters(source, name)
        self._address = ctypes.cast(self._library.gpu_kernel, ctypes.c_void_p).value
        shared = ctypes.addressof(ctypes.c_ubyte.in_dll(_build.runtime(), "gpu_shared"))
        self._regions = [(shared + begin, shared + begin + size, _SHARED) for begin, size in self._translated.shared]
        self._shared = shared
        self._regions += self._variables()

    def _variables(self) -> list[tuple[int, int, int]]:
        spans = ctypes.addressof(ctypes.c_uint64.in_dll(self._library, "gpu_variables"))
        found = []
        while (span := (ctypes.c_uint64 * 2).from_address(spans))[0]:
            found.append((*span, _VARIABLE))
            spans += ctypes.sizeof(span)
        return found

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        reach: Sequence[Any] = (),
        schedule: Schedule | None = None,
    ) -> None:
        grid, block = self._shape(grid, block)
        shared_end, regions = self._shared_memory(shared_mem)
        values = self._arguments(args, regions)
        regions += [(*_extent(array), _REACHED) for array in reach]
        packed = (ctypes.c_uint64 * max(1, 2 * len(values)))()  # 16 bytes each: a complex number is the largest
        pointers = (ctypes.c_void_p * max(1, len(values)))()
        for k, value in enumerate(values):
            pointers[k] = ctypes.addressof(packed) + 16 * k
            ctypes.memmove(pointers[k], value, len(value))
        schedule = schedule or Schedule()
        launch = _Launch(
            self._address,
            ctypes.addressof(pointers),
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*block),
            (_Region * max(1, len(regions)))(*regions),
            len(regions),
            shared_end,
            _ORDERS[schedule.order],
            schedule.seed,
            schedule.preempt,
        )
        if _build.runtime().gpu_launch(ctypes.byref(launch)):
            raise KernelError(self._explain(_build.runtime().gpu_report().decode()))

    def _shape(self, grid: Sequence[int], block: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        grid, block = ((*map(int, size), 1, 1)[:3] for size in (grid, block))
        if min(*grid, *block) < 1:
            raise KernelError(f"{self.name}: grid {grid}, block {block}: CuPy would silently launch one block for none")
        if grid[0] >= 2**31 or max(grid[1:]) > 65535 or max(block[:2]) > 1024 or block[2] > 64 or np.prod(block) > 1024:
            raise KernelError(f"{self.name}: no GPU takes grid {grid} with block {block}")
        return grid, block

    def _shared_memory(self, dynamic: int) -> tuple[int, list[tuple[int, int, int]]]:
        """How much of the arena is in use, and the regions of what is in it."""
        static = sum(size for _, size in self._translated.shared)
        if static > _MOST_SHARED or static + dynamic > max(_MOST_SHARED, self.max_dynamic_shared_size_bytes):
            raise KernelError(f"{self.name}: {static} bytes of static shared memory and {dynamic} of dynamic are too much")
        end = max((begin + size for begin, size in self._translated.shared), default=0)
        regions = list(self._regions)
        begin = self._translated.dynamic_shared
        if begin is not None:
            regions.append((self._shared + begin, self._shared + begin + dynamic, _SHARED))
            end = begin + dynamic
        return end, regions

    def _arguments(self, args: Sequence[Any], regions: list[tuple[int, int, int]]) -> list[bytes]:
        """Their bytes. Adds the arrays' memory to ``regions``."""
        if len(args) != len(self._parameters):
            raise KernelError(f"{self.name} takes {len(self._parameters)} arguments, got {len(args)}")
        values = []
        for k, (arg, parameter, (size, is_float)) in enumerate(
            zip(args, self._parameters, self._translated.parameters, strict=True)
        ):
            array = getattr(arg, "_array", None)
            if array is not None or arg is None:
                begin, end = (0, 0) if arg is None else _extent(arg)
                right = parameter.is_pointer and (arg is None or parameter.accepts(array.dtype))
                given = "None" if arg is None else f"an array of {array.dtype}"
                value = begin.to_bytes(8, "little")
                if end > begin:
                    regions.append((begin, end, k))
            else:
                scalar = _scalar(arg)
                right = not parameter.is_pointer and parameter.accepts(scalar.dtype)
                right = right and scalar.dtype.itemsize == size and (scalar.dtype.kind == "f") == is_float
                given = f"a scalar of {scalar.dtype}"
                value = scalar.tobytes()
            if not right:
                declared = f"{parameter.c_type}{'*' if parameter.is_pointer else ''} {parameter.name}"
                raise KernelError(f"{self.name}: argument {k} is {given}, the kernel declares {declared}")
            values.append(value)
        return values

    def _explain(self, report: str) -> str:
        """The runtime's report with names of arguments and the source lines."""
        lines = self._source.splitlines()

        def place(match: re.Match[str]) -> str:
            chain = self._translated.sites[int(match[1])]
            file, line = chain[0]
            inlined = "".join(f", inlined in line {outer}" for _, outer in chain[1:])
            if Path(file).name != self._file or not 0 < line <= len(lines):
                return f"{file}, line {line}{inlined}"
            text = "".join(f"\n      {lines[number - 1].strip()}" for _, number in chain)
            return f"line {line} of {self._file} with its headers{inlined}{text}"

        report = re.sub(r"argument (\d+)", lambda m: f"argument {m[1]} ({self._parameters[int(m[1])].name})", report)
        return f"{self.name}: {re.sub(r'site ([0-9]+)', place, report)}"


def _extent(array: Any) -> tuple[int, int]:
    """The first byte of an array and the one after the last."""
    data = array._array
    if data.flags.c_contiguous:
        begin = data.ctypes.data
        return begin, begin + data.nbytes
    return np.lib.array_utils.byte_bounds(data)


def _scalar(value: Any) -> np.generic:
    """As CuPy passes scalars."""
    if isinstance(value, np.generic):
        return value
    python = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
    if type(value) not in python:
        raise TypeError(f"Unsupported type {type(value)}")  # what CuPy says
    return python[type(value)](value)
