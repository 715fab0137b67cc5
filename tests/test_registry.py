"""Which backend serves a call: argument > context > environment > default; third parties by entry point; threads."""

import asyncio
import concurrent.futures
import contextvars
import threading

import numpy as np
import pytest

import sparsekit

INDEX, ONES = np.array([1, 0, 1]), np.ones(3)


def call(**options):
    return sparsekit.coalesce(INDEX, ONES, (2,), **options)


@pytest.fixture
def spy(monkeypatch, both_backends):
    """Calls coalesce and returns the name of the backend that served it."""
    import sparsekit_numba
    import sparsekit_scipy

    served = threading.local()
    for name, module in (("numba", sparsekit_numba), ("scipy", sparsekit_scipy)):

        def wrapped(*args, _name=name, _original=module.coalesce, **options):
            served.name = _name
            return _original(*args, **options)

        monkeypatch.setattr(module, "coalesce", wrapped)
    monkeypatch.delenv("SPARSEKIT_BACKEND", raising=False)

    def spied(**options):
        call(**options)
        return served.name

    return spied


def test_precedence(spy, monkeypatch):
    assert spy() == "numba"  # the default
    monkeypatch.setenv("SPARSEKIT_BACKEND", "scipy")
    assert spy() == "scipy"
    with sparsekit.use_backend("numba"):
        assert spy() == "numba"
        assert spy(backend="scipy") == "scipy"
        with sparsekit.use_backend("scipy"):
            assert spy() == "scipy"
            assert spy(backend="numba") == "numba"
        assert spy() == "numba"
    assert spy() == "scipy"
    with pytest.raises(KeyError), sparsekit.use_backend("numba"):
        raise KeyError
    assert spy() == "scipy"  # left behind by an exception too


def test_every_function_looks_at_context_and_environment(monkeypatch):
    coo = sparsekit.COO(INDEX[None], ONES, (2,))
    table = [np.zeros((2, 1)) for _ in range(3)]
    calls = {
        "coalesce": call,
        "add": lambda: sparsekit.add(coo, coo),
        "to_dense": coo.to_dense,
        "is_coalesced": lambda: sparsekit.is_coalesced(INDEX),
        "topk": lambda: sparsekit.topk(ONES, 1),
        "topk_mask": lambda: sparsekit.topk_mask(ONES, 1),
        "sparse_adam_step": lambda: sparsekit.sparse_adam_step(*table, INDEX, np.ones((3, 1)), step=1),
    }
    monkeypatch.setenv("SPARSEKIT_BACKEND", "nonesuch")
    for name, one in calls.items():
        with pytest.raises(ValueError, match="nonesuch"):
            print(name, one())  # shown where it did not look at the environment
    assert not table[0].any()


def test_unknown_backend_names_the_known_ones():
    for ask in (lambda: call(backend="nonesuch"), lambda: sparsekit.use_backend("nonesuch").__enter__()):
        with pytest.raises(ValueError, match="nonesuch") as raised:
            ask()
        assert all(word in str(raised.value) for word in ("nonesuch", "numba", "scipy"))
    for wrong in (3, b"scipy", ["scipy"]):
        with pytest.raises(TypeError):
            call(backend=wrong)


def test_context_is_per_thread(spy):
    barrier = threading.Barrier(2, timeout=20)

    def work(name):
        with sparsekit.use_backend(name):
            seen = []
            for _ in range(5):
                barrier.wait()
                seen.append(spy())
            return set(seen)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, ["numba", "scipy"])) == [{"numba"}, {"scipy"}]
    with sparsekit.use_backend("scipy"), concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(spy).result() == "numba"  # a new thread starts from the default
        assert pool.submit(contextvars.copy_context().run, spy).result() == "scipy"


def test_context_is_per_task(spy):
    async def work(name):
        with sparsekit.use_backend(name):
            seen = []
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(spy())
            return set(seen)

    async def main():
        return await asyncio.gather(work("numba"), work("scipy"), work("numba"))

    assert asyncio.run(main()) == [{"numba"}, {"scipy"}, {"numba"}]


def test_available_backends(both_backends):
    assert sparsekit.available_backends()[:2] == ["numba", "scipy"]
    assert isinstance(sparsekit.available_backends(), list)


THIRD_PARTY = """
from sparsekit_scipy import *
import sparsekit_scipy
calls = []

def coalesce(*args, **options):
    calls.append("coalesce")
    return sparsekit_scipy.coalesce(*args, **options)

def __getattr__(name):
    return getattr(sparsekit_scipy, name)
"""


def third_party(tmp_path, **modules):
    """A distribution on disk with entry points, as pip would leave it."""
    info = tmp_path / "fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
    lines = [f"{name} = {name}_module" for name in modules]
    (info / "entry_points.txt").write_text("[sparsekit.backends]\n" + "\n".join(lines) + "\n")
    for name, source in modules.items():
        (tmp_path / f"{name}_module.py").write_text(source)


def test_third_party_backend(run_python, tmp_path):
    pytest.importorskip("scipy.sparse")
    third_party(tmp_path, fake=THIRD_PARTY, broken="import nonesuch_library\n", scipy="raise SystemError\n")
    code = """
import sys
import numpy as np, sparsekit
assert "fake" in sparsekit.available_backends()
assert "fake_module" not in sys.modules  # not before it is needed
one = (np.array([1, 0, 1]), np.ones(3), (2,))
assert sparsekit.coalesce(*one, backend="fake").values.tolist() == [1.0, 2.0]
with sparsekit.use_backend("fake"):
    sparsekit.coalesce(*one)
import fake_module
assert fake_module.calls == ["coalesce"] * 2
sparsekit.coalesce(*one)  # never chosen by itself
sparsekit.coalesce(*one, backend="scipy")  # a built-in name cannot be taken over
assert fake_module.calls == ["coalesce"] * 2
assert "broken" in sparsekit.available_backends()
try:
    sparsekit.coalesce(*one, backend="broken")
except ImportError as error:
    assert "nonesuch_library" in str(error)
else:
    raise AssertionError
try:
    sparsekit.coalesce(*one, backend="nonesuch")
except ValueError as error:
    assert "fake" in str(error)
"""
    run_python(code, path=[tmp_path])
    run_python(
        "import numpy as np, sparsekit\nsparsekit.coalesce(np.array([0]), np.ones(1), (1,))\n"
        "import fake_module\nassert fake_module.calls == ['coalesce']",
        path=[tmp_path],
        SPARSEKIT_BACKEND="fake",
    )


def test_thread_count(threads, run_python):
    threads(3)
    assert sparsekit.get_num_threads() == 3
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError), (True, TypeError)):
        with pytest.raises(error):
            threads(wrong)
        assert sparsekit.get_num_threads() == 3
    code = "import sparsekit; print(sparsekit.get_num_threads())"
    assert run_python(code, SPARSEKIT_NUM_THREADS="5").strip() == "5"
    default = "import os, sparsekit; print(sparsekit.get_num_threads() == len(os.sched_getaffinity(0)))"
    assert run_python(default).strip() == "True"
    one = "import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1]); " + code
    assert run_python(one).strip() == "1"


@pytest.mark.parametrize("text", ["0", "-2", "many", "1.5"])
def test_wrong_thread_count_in_the_environment(run_python, text):
    code = """
import numpy as np, sparsekit
try:
    sparsekit.coalesce(np.array([0]), np.ones(1), (1,))
except ValueError as error:
    print(error)
"""
    out = run_python(code, SPARSEKIT_NUM_THREADS=text)
    assert "SPARSEKIT_NUM_THREADS" in out and text in out
