"""Numbers on the command line."""

import argparse
import math


def positive(text: str) -> int:
    return _at_least(1, text)


def natural(text: str) -> int:
    return _at_least(0, text)


def rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text!r}")
    return number


def share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number > 0 and <= 1, got {text!r}")
    return number


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected an integer >= {least}, got {text!r}")
    return number
