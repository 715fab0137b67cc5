"""What sparsekit's contenders have in common."""

from collections.abc import Callable
from functools import partial

from bench._case import Contender, Prepared, SkippedError

OURS, ONE_THREAD, REFERENCE = "sparsekit", "sparsekit, 1 thread", "sparsekit scipy"
_LIMIT = 5_000_000  # values that the reference backend handles in some seconds


def contenders(prepare: Callable[..., Prepared | None]) -> tuple[Contender, ...]:
    """The Numba backend with the run's threads and with one, and the reference backend."""
    return (
        Contender(OURS, partial(prepare, backend="numba"), ours=True),
        Contender(ONE_THREAD, partial(prepare, backend="numba"), ours=True, threads=1),
        Contender(REFERENCE, partial(prepare, backend="scipy"), ours=True),
    )


def refuse_slow(backend: str, size: int) -> None:
    """The reference backend is plain code, not fast code."""
    if backend == "scipy" and size > _LIMIT:
        raise SkippedError(f"the reference backend is left out beyond {_LIMIT:,} values")


def release() -> None:
    """Give back the scratch memory that sparsekit keeps between calls."""
    import sparsekit

    clear = getattr(sparsekit, "clear_cache", None)
    if clear is not None:
        clear()
