"""CUDA kernels on a machine without a GPU: compiled by NVRTC, translated to C++, run on the CPU under a checker.

``host_device()`` is a ``sparsekit_cupy._device.Device`` whose arrays are NumPy's (``_arrays``) and whose kernels are the
backend's own ``.cu`` files as NVRTC compiled them. What it cannot show: speed, and what a real GPU's memory may reorder.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from _cuda._compile import missing
from _cuda._launch import Kernel, KernelError, Module, Schedule
from _cuda._ptx import Unsupported

__all__ = ["Kernel", "KernelError", "Module", "Schedule", "Unsupported", "host_device", "missing"]


def host_device(xp: Any = None, multiprocessors: int = 1, order: str = "forward", seed: int = 0, preempt: int = 0) -> Any:
    """A device on the CPU. ``order`` ("forward", "reverse", "random") and ``preempt`` are the schedule, see ``Schedule``."""
    from sparsekit_cupy._device import Device

    if xp is None:
        from _cuda import _arrays as xp

    class HostDevice(Device):
        """``launches`` counts kernels by name."""

        def __init__(self) -> None:
            super().__init__(xp, Module, multiprocessors)
            self.schedule = Schedule(order, seed, preempt)
            self.launches: dict[str, int] = {}

        def queue(
            self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], reach: Sequence[Any]
        ) -> None:
            self.launches[kernel.name] = self.launches.get(kernel.name, 0) + 1
            kernel(grid, block, args, reach=reach, schedule=self.schedule)

        @contextlib.contextmanager
        def settings(self, **changes: Any) -> Iterator[None]:
            """Another schedule for the time being: ``with device.settings(order="random", seed=3):``."""
            before = vars(self.schedule).copy()
            try:
                self.schedule = Schedule(**(before | changes))
                yield
            finally:
                self.schedule = Schedule(**before)

    return HostDevice()
