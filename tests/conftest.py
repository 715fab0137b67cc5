"""Fixtures for all tests: each backend in turn, the thread count put back, a fresh Python with the same sparsekit."""

import functools
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# The helpers (_oracles, _cases, ...) are found in pytest's importlib mode too, and where pythonpath is off
# to test an installed wheel. At the end, and tests/torch has no __init__.py: nothing may hide an installed module.
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)

CUPY_HOST = "cupy-host"  # the CUDA backend on NumPy arrays, see _cuda/_backend.py
CPU_BACKENDS = ("numba", "scipy")
BACKENDS = (*CPU_BACKENDS, CUPY_HOST)
REQUIRED = os.environ.get("SPARSEKIT_REQUIRE_BACKENDS") == "1"

hypothesis.settings.register_profile(
    "dev", max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# In CI a change is judged by the same examples each time; new ones are looked for by who works on it.
hypothesis.settings.register_profile(
    "ci", parent=hypothesis.settings.get_profile("dev"), max_examples=60, derandomize=True, print_blob=True
)
# make fuzz: many, and others each time.
hypothesis.settings.register_profile("fuzz", parent=hypothesis.settings.get_profile("dev"), max_examples=500, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def require(name):
    """Skip where a backend cannot run here; where all are asked for, its absence is an error."""
    why = lacking(name)
    if why is not None:
        if REQUIRED:
            pytest.fail(f"backend {name!r} is required (SPARSEKIT_REQUIRE_BACKENDS=1), but {why}")
        pytest.skip(f"backend {name!r}: {why}")


@functools.cache
def lacking(name):
    """What keeps a backend from running here, or None."""
    if name != CUPY_HOST:
        return None if importlib.util.find_spec(name) else f"{name} is not installed"
    import _cuda._backend

    from sparsekit import _registry

    why = None if _cuda._backend.ON_CUDA else _cuda.missing()
    if why is None:
        _registry._loaded[CUPY_HOST] = _cuda._backend.backend()
    return why


@pytest.fixture(params=BACKENDS, scope="session")  # session scope: hypothesis may use it
def backend(request):
    require(request.param)
    return request.param


@pytest.fixture
def in_each_backend(backend):
    """The test runs once with each backend as the one in use."""
    import sparsekit

    with sparsekit.use_backend(backend):
        yield


@pytest.fixture(params=[name for name in BACKENDS if name != "scipy"], scope="session")
def both_backends(request):
    """A fast backend and the reference."""
    pair = request.param, "scipy"
    for name in pair:
        require(name)
    return pair


@pytest.fixture(params=CPU_BACKENDS, scope="session")
def cpu_backend(request):
    """For what has to do with the CPU's threads and processes."""
    require(request.param)
    return request.param


@pytest.fixture(scope="session")
def torch():
    pytest.importorskip("torch.nn")  # not "torch": where it is missing, tests/torch can be imported by that name
    importlib.import_module("sparsekit.torch")
    return sys.modules["torch"]


@pytest.fixture
def threads():
    """sparsekit.set_num_threads, undone at the end of the test."""
    import sparsekit

    before = sparsekit.get_num_threads()
    yield sparsekit.set_num_threads
    sparsekit.set_num_threads(before)


@pytest.fixture
def run_python():
    """Run code in a fresh Python with this one's sys.path; returns its output, fails with its traceback."""

    def run(code, *args, path=(), timeout=90, **env):
        path = [*map(str, path), *filter(None, sys.path)]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SPARSEKIT_")}
        environ |= {"PYTHONPATH": os.pathsep.join(path), **env}
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
