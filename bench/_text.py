"""Real text: the English that every CPython ships, or the user's own file, as numbered words."""

import ast
import os
import re
import sysconfig
import warnings
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MIN_WORDS = 1000
# Tests, other people's packages, and the character tables, whose docstrings are one sentence a hundred times over.
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "idlelib", "encodings"}
_WORD = re.compile(r"[^\W\d]\w*")
_DOCTEST = re.compile(r"^\s*(>>>|\.\.\. ).*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Text:
    """A text of n words, V of them distinct.

    words : V distinct words, the most frequent first, ties in alphabetical order
    counts : int64 (V,), how often each occurs
    ids : int32 (n,), the text as numbers of words
    paragraph : int32 (n,), the paragraph of each; a window never reaches into the next paragraph
    """

    words: list[str]
    counts: np.ndarray[Any, np.dtype[np.int64]]
    ids: np.ndarray[Any, np.dtype[np.int32]]
    paragraph: np.ndarray[Any, np.dtype[np.int32]]


def stdlib_paragraphs(folder: str | Path | None = None) -> Iterator[str]:
    """The standard library's docstrings and pydoc's help topics, in the order of their files; nothing is imported."""
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    for file in _python_files(root):
        topics = file.name == "topics.py" and file.parent.name == "pydoc_data"
        source = file.read_bytes()
        if not topics and b'"""' not in source and b"'''" not in source:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules
            try:
                tree = ast.parse(source)
            except (SyntaxError, ValueError):
                continue  # distributions put files for other versions and in other encodings there
        passages = _strings(tree) if topics else _docstrings(tree)
        for passage in passages:
            yield from _BLANK_LINES.split(_DOCTEST.sub("", passage))


def file_paragraphs(path: str | Path) -> Iterator[str]:
    """The paragraphs of a UTF-8 file, which blank lines part; other bytes become replacement characters."""
    lines: list[str] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip():
                lines.append(line)
            elif lines:
                yield "".join(lines)
                lines = []
    if lines:
        yield "".join(lines)


def read_text(path: str | Path | None = None, *, min_count: int = 1) -> Text:
    """Number the words of a file, or of the standard library.

    Words that occur less than ``min_count`` times are left out, as if they had never stood there.
    Raises OSError if the file cannot be read, ValueError if it holds too little to train on.
    """
    paragraphs = stdlib_paragraphs() if path is None else file_paragraphs(path)
    name = "the standard library" if path is None else str(path)
    return number_words(paragraphs, name=name, min_count=min_count)


def number_words(paragraphs: Iterable[str], *, name: str = "the text", min_count: int = 1) -> Text:
    """Number the words of the paragraphs; ValueError where they are too few."""
    first_seen: dict[str, int] = {}
    stream = array("i")
    lengths = array("i")
    for paragraph in paragraphs:
        before = len(stream)
        stream.extend(first_seen.setdefault(word, len(first_seen)) for word in _WORD.findall(paragraph.lower()))
        lengths.append(len(stream) - before)
    ids = np.array(stream, dtype=np.int32)
    if len(ids) < MIN_WORDS:
        raise ValueError(f"{name}: expected at least {MIN_WORDS} words to train on, got {len(ids)}")
    paragraph_of = np.repeat(np.arange(len(lengths), dtype=np.int32), np.array(lengths))

    spelled = list(first_seen)
    counts = np.bincount(ids, minlength=len(spelled))
    order = sorted(np.flatnonzero(counts >= min_count).tolist(), key=lambda i: (-counts[i], spelled[i]))
    if len(order) < 2:
        raise ValueError(f"{name}: expected at least 2 words that occur {min_count} times or more, got {len(order)}")
    renumbered = np.full(len(spelled), -1, dtype=np.int32)
    renumbered[order] = np.arange(len(order), dtype=np.int32)
    ids = renumbered[ids]
    kept = ids >= 0
    ids, paragraph_of = ids[kept], paragraph_of[kept]
    if not (paragraph_of[1:] == paragraph_of[:-1]).any():
        raise ValueError(f"{name}: expected paragraphs of several words, got no two words in one paragraph")
    return Text([spelled[i] for i in order], counts[order].astype(np.int64), ids, paragraph_of)


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name)


def _docstrings(tree: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    docstring = ast.get_docstring(tree)
    if docstring:
        yield docstring
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(node)


def _strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
