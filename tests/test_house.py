"""Rules of the house that no linter holds: docstrings, names of files, backends that follow the protocol."""

import ast
import importlib
import importlib.util
import inspect
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparsekit
from sparsekit import _protocol, _registry

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
NAMES = [name for name in sparsekit.__all__ if name != "__version__"]
OPERATIONS = [name for name in NAMES if "backend" in getattr(inspect.unwrap(getattr(sparsekit, name)), "__annotations__", ())]
PROTOCOL = [name for name, value in vars(_protocol.Backend).items() if inspect.isfunction(value) and not name.startswith("_")]
# What an operation's Notes must tell.
NOTES = {"cost": r"\bCost\b", "determinism": r"\bDeterminis(m|tic)\b", "source": r"\b(Source|Reference)\b"}
NO_SOURCE = {"is_coalesced"}  # a definition, stated in full; it follows nobody


def headings(docstring):
    """The numpydoc headings: lines that are underlined in full."""
    lines = docstring.splitlines()
    return [line for line, under in itertools.pairwise(lines) if line and under == "-" * len(line)]


def check_docstring(public):
    docstring = inspect.getdoc(public)
    assert docstring, "no docstring"
    found = headings(docstring)
    summary, _, rest = docstring.partition("\n")
    assert summary.endswith(".") and (not rest or rest.startswith("\n")), f"does not open with a one-line summary: {summary!r}"
    order = [name for name in ("Parameters", "Returns", "Yields", "Raises", "Notes", "Examples") if name in found]
    assert found == order, f"headings unknown, twice or out of order: {found}"
    assert "Examples" in found and ">>> " in docstring, "no example"
    if inspect.isclass(public):
        return found
    signature = inspect.signature(public)
    if signature.parameters:
        assert "Parameters" in found, "takes parameters, says nothing of them"
        section = docstring.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
        heads = [line.partition(" : ")[0] for line in section.splitlines() if not line.startswith(" ")]
        described = [name.lstrip("*") for head in heads for name in head.split(", ")]
        assert described == list(signature.parameters), "its parameters, in their order"
    if signature.return_annotation not in (None, Iterator[None]):
        assert "Returns" in found, "returns something, says nothing of it"
    return found


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented_with_an_example(name):
    check_docstring(getattr(sparsekit, name))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_tell_errors_cost_determinism_and_source(name):
    public = getattr(sparsekit, name)
    found = check_docstring(public)
    assert {"Parameters", "Returns", "Raises", "Notes", "Examples"} <= set(found)
    notes = inspect.getdoc(public).partition("Notes\n-----\n")[2].partition("\n\n")[0]
    missing = {what for what, pattern in NOTES.items() if not re.search(pattern, notes)}
    assert missing == ({"source"} if name in NO_SOURCE else set())


def test_the_operations_are_found():
    assert {"add", "coalesce", "is_coalesced", "sparse_adam_step", "topk", "topk_mask"} <= set(OPERATIONS)


@pytest.mark.usefixtures("torch")
def test_names_of_the_torch_layer_are_documented():
    import sparsekit.torch

    assert {"SparseAdam", "coalesce"} <= set(sparsekit.torch.__all__)
    for name in sparsekit.torch.__all__:
        assert {"Parameters", "Raises", "Examples"} <= set(check_docstring(getattr(sparsekit.torch, name))), name


@pytest.mark.parametrize("name", [name for name, _ in inspect.getmembers(sparsekit.COO) if not name.startswith("_")])
def test_members_of_coo_are_documented(name):
    member = inspect.getattr_static(sparsekit.COO, name)
    docstring = inspect.getdoc(member)
    assert docstring
    assert isinstance(member, property) or ">>> " in docstring


def sources():
    """Every source file of the packages, where they are imported from."""
    packages = ["sparsekit", *(spec.module for spec in _registry._BUILT_IN.values())]
    if importlib.util.find_spec("bench"):  # in a checkout
        packages.append("bench")
    folders = [Path(importlib.util.find_spec(package).origin).parent for package in packages]
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def test_no_file_bears_the_name_of_a_function_inside_it():
    """``from package.coalesce import coalesce`` would make ``package.coalesce`` the one or the other, by order of import."""
    definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    files = sources()
    assert len(files) > 20
    twins = [
        file
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, definition) and node.name == file.stem
    ]
    assert twins == []


def test_the_protocol_is_found():
    assert {"coalesce", "is_coalesced", "topk", "sparse_adam_step", "set_num_threads", "warmup"} <= set(PROTOCOL)


@pytest.mark.parametrize("name", PROTOCOL)
def test_backends_have_the_protocols_functions(backend, name):
    module = importlib.import_module(f"sparsekit_{backend.removesuffix('-host')}")
    function = getattr(module, name)
    wanted = list(inspect.signature(getattr(_protocol.Backend, name)).parameters.values())[1:]  # without self
    got = inspect.signature(function).parameters.values()
    assert [(p.name, p.kind) for p in got] == [(p.name, p.kind) for p in wanted]


def test_backends_name_their_devices(backend):
    name = backend.removesuffix("-host")
    devices = importlib.import_module(f"sparsekit_{name}").devices
    assert devices and isinstance(devices, tuple)
    assert set(devices) <= {"cpu", "cuda"}
    assert devices == _registry._BUILT_IN[name].devices


@pytest.mark.skipif(not PYPROJECT.exists(), reason="no pyproject.toml beside the tests")
def test_the_torch_layer_is_kept_off_every_private_module():
    """import-linter has no pattern for "all that begin with an underscore", so the list must grow with the core."""
    contracts = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    listed = [c["forbidden_modules"] for c in contracts if c.get("source_modules") == ["sparsekit.torch"]]
    private = {f"sparsekit.{file.stem}" for file in Path(sparsekit.__file__).parent.glob("_*.py")} - {"sparsekit.__init__"}
    assert len(listed) == 1
    assert set(listed[0]) == private
