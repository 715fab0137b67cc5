"""A kernel's parameters as its source declares them. CuPy passes whatever it is given; here the types are compared."""

import re
from typing import NamedTuple

import numpy as np

# Kind (integer, float, complex) and size. Other types are not compared.
_KNOWN = {
    **dict.fromkeys(("bool", "char", "signed char", "unsigned char", "u8"), ("i", 1)),
    **dict.fromkeys(("short", "unsigned short", "u16", "BFloat16"), ("i", 2)),
    **dict.fromkeys(("int", "unsigned", "unsigned int", "u32"), ("i", 4)),
    **dict.fromkeys(("long long", "unsigned long long", "i64", "u64"), ("i", 8)),
    "Half": ("f", 2),
    "float": ("f", 4),
    "double": ("f", 8),
    "Complex<float>": ("c", 8),
    "Complex<double>": ("c", 16),
}


class Parameter(NamedTuple):
    name: str
    c_type: str  # of what it points to, if it is a pointer
    is_pointer: bool

    def accepts(self, dtype: np.dtype) -> bool:
        """Whether an array (or a scalar) of this dtype is what the kernel takes it for. Integers' signs are not compared."""
        kind = "i" if dtype.kind in "biu" else dtype.kind
        return _KNOWN.get(self.c_type, (kind, dtype.itemsize)) == (kind, dtype.itemsize)


def parameters(source: str, name: str) -> list[Parameter]:
    """Of the kernel of this name, which may be an instance of a template."""
    base, _, arguments = name.partition("<")
    declaration = re.search(
        r"(?:template\s*<(?P<template>[^{};]*?)>\s*)?(?:extern\s+\"C\"\s+)?__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?"
        + re.escape(base)
        + r"\s*\((?P<parameters>[^)]*)\)",
        source,
    )
    if declaration is None:
        raise LookupError(f"no kernel {base} in the source")
    names = [part.split()[-1] for part in _split(declaration["template"] or "")]
    given = dict(zip(names, _split(arguments.removesuffix(">")), strict=False))
    return [_parameter(text, given) for text in _split(declaration["parameters"])]


def _parameter(text: str, given: dict[str, str]) -> Parameter:
    words = re.sub(r"\b(const|volatile|__restrict__)\b", " ", text)
    match = re.fullmatch(r"\s*(.*?)\s*(\*?)\s*(\w+)\s*", words, flags=re.DOTALL)
    c_type = re.sub(r"\w+", lambda m: given.get(m[0], m[0]), " ".join(match[1].split()))
    return Parameter(match[3], c_type, bool(match[2]))


def _split(text: str) -> list[str]:
    """At the commas outside of angle brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text + ","):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [part for part in parts if part]
