"""The words of the measurements: an operation has cases, and contenders that compete on each of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# What may come of a contender on a case. Only what is OK is timed.
OK, SKIPPED, MISSING, WRONG, FAILED = "ok", "skipped", "missing", "wrong", "failed"
NOT_APPLICABLE = "not applicable"


class SkippedError(Exception):
    """A contender sits a case out; the message says why."""


class WrongResultError(Exception):
    """A contender's result differs from the oracle's; the message says where."""


def nothing() -> None:
    """What a call that needs no preparation is given."""


@dataclass(frozen=True)
class Case:
    """One input of one operation.

    operation : the name of an Operation
    name : unique among the cases of the operation
    n : its size: entries, elements or ids
    make : draws the input, the same every time
    dtype : of the values; bfloat16 values are kept as uint16 bit patterns
    k : how many topk is to find
    series : cases of one series differ in n only, and share a panel of a chart
    quick : belongs to the quick set
    """

    operation: str
    name: str
    n: int
    make: Callable[[], Arrays]
    dtype: str = "float32"
    k: int = 0
    series: str = ""
    quick: bool = False

    @property
    def key(self) -> str:
        return f"{self.operation} {self.name}"


@dataclass(frozen=True)
class Prepared:
    """A contender ready for one case, its input in the form that it likes best.

    call : what is timed; is given what ``fresh`` returned
    result : what a call returned, as NumPy arrays for the check
    fresh : run before every call, outside the time
    release : gives back memory kept between calls, before extra memory is measured
    elapsed : for a call that runs elsewhere: the seconds that it took, read from what it returned
    """

    call: Callable[[Any], Any]
    result: Callable[[Any], Arrays]
    fresh: Callable[[], Any] = nothing
    release: Callable[[], None] = nothing
    elapsed: Callable[[Any], float] | None = None


@dataclass(frozen=True)
class Contender:
    """A way to do an operation.

    name : contenders of one name share a process, across operations
    prepare : None where it cannot do the case; raises SkippedError where it should not, ImportError where a package is missing
    ours : sparsekit, not a peer
    threads : overrides the run's number of threads
    """

    name: str
    prepare: Callable[[Case, Arrays], Prepared | None]
    ours: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class Operation:
    """What is measured.

    expect : the oracle: (case, input) to what ``check`` needs, in float64 NumPy
    check : (case, input, expected, result); raises WrongResultError
    floor_bytes : (case, input, expected) to the bytes that any implementation must move; 0 where there is no such floor
    """

    name: str
    cases: tuple[Case, ...]
    contenders: tuple[Contender, ...]
    expect: Callable[[Case, Arrays], Arrays]
    check: Callable[[Case, Arrays, Arrays, Arrays], None]
    floor_bytes: Callable[[Case, Arrays, Arrays], int]
