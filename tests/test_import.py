"""`import sparsekit` loads NumPy and nothing else; everything further is loaded by the call that needs it."""

import importlib.util
import json

import pytest

HEAVY = (
    "numba",
    "llvmlite",
    "scipy",
    "cupy",
    "torch",
    "ml_dtypes",
    "sparsekit_numba",
    "sparsekit_scipy",
    "sparsekit_cupy",
)
LOADED = "import json, sys; print(json.dumps([name for name in {} if name in sys.modules]))"


def loaded(run_python, code, **env):
    return json.loads(run_python(f"{code}\n{LOADED.format(HEAVY)}", **env).splitlines()[-1])


def test_import_loads_numpy_only(run_python):
    assert loaded(run_python, "import numpy, sparsekit") == []
    assert loaded(run_python, "from sparsekit import *\nimport sparsekit\nsparsekit.__version__; sparsekit.COO") == []


def test_looking_around_loads_nothing(run_python):
    code = "import sparsekit\nsparsekit.available_backends(); sparsekit.get_num_threads(); sparsekit.set_num_threads(2)"
    assert loaded(run_python, code) == []


def test_a_call_loads_its_own_backend_only(run_python, both_backends):
    code = """
import numpy as np, sparsekit
coo = sparsekit.coalesce(np.array([1, 0, 1]), np.ones(3), (2,), backend="scipy")
coo = sparsekit.add(coo, coo, backend="scipy")
sparsekit.topk(np.ones(3), 1, backend="scipy")
"""
    assert not {"numba", "sparsekit_numba", "torch", "cupy"} & set(loaded(run_python, code))
    done = loaded(run_python, code.replace('"scipy"', '"numba"'))
    assert "numba" in done and not {"sparsekit_scipy", "torch", "cupy"} & set(done)


def test_imports_without_any_backend(run_python, tmp_path):
    """Where numba or scipy cannot be found the rest still works, and asking for one says what to install."""
    code = """
import importlib.util, sys
hidden = sys.argv[1].split(",")

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in hidden else find(name, package)
import numpy as np, sparsekit
print(sparsekit.available_backends())
for name in hidden:
    try:
        sparsekit.coalesce(np.array([0]), np.ones(1), (1,), backend=name)
    except sparsekit.BackendUnavailableError as error:
        assert name in str(error) and "install" in str(error), str(error)
        assert isinstance(error, ImportError)
    else:
        raise AssertionError(name)
    try:
        with sparsekit.use_backend(name):
            sparsekit.topk(np.ones(1), 1)
    except sparsekit.BackendUnavailableError:
        pass
    else:
        raise AssertionError(name)
if "scipy" not in hidden:
    print(sparsekit.coalesce(np.array([0, 0]), np.ones(2), (1,)).values)
"""
    if importlib.util.find_spec("scipy"):
        out = run_python(code, "numba")
        assert "'scipy'" in out and "'numba'" not in out and "[2.]" in out
    assert "scipy" not in run_python(code, "numba,scipy")


def test_version_is_that_of_the_distribution():
    import importlib.metadata

    import sparsekit

    try:
        version = importlib.metadata.version("sparsekit")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("sparsekit runs from the checkout, not installed")
    assert sparsekit.__version__ == version


def test_public_names():
    import sparsekit

    expected = {
        "COO",
        "BackendUnavailableError",
        "add",
        "available_backends",
        "coalesce",
        "get_num_threads",
        "is_coalesced",
        "set_num_threads",
        "sparse_adam_step",
        "topk",
        "topk_mask",
        "use_backend",
    }
    assert expected <= set(sparsekit.__all__)
    assert all(getattr(sparsekit, name).__doc__ for name in expected)
