"""CuPy's arrays as the core takes them: as they are. CuPy is not imported here; its arrays bring it along."""

import contextlib
from typing import Any

from sparsekit._dlpack import as_bits, from_bits
from sparsekit._protocol import Array


class _Adapter:
    """What the core asks of an array library (``sparsekit._dlpack.Adapter``)."""

    library = "cupy"

    def device(self, x: Any) -> str:
        return f"cuda:{x.device.id}"

    def unwrap(self, x: Any) -> tuple[Array, str]:
        return as_bits(x)

    def wrap(self, a: Array, dtype: str) -> Any:
        return from_bits(a, dtype)

    def context(self, x: Any) -> contextlib.AbstractContextManager[Any]:
        """CuPy's current stream stays: it is the caller's choice."""
        device: contextlib.AbstractContextManager[Any] = x.device
        return device

    def wrote(self, x: Any) -> None:
        pass


adapter = _Adapter()
