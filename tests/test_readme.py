"""The README's Python examples run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if README.exists() else []


def run_in_two_processes(block, folder):
    """As torchrun does, but for the rendezvous, which is a file here."""
    script = folder / "script.py"
    rendezvous = f'"gloo", init_method="file://{folder}/store", rank=int(sys.argv[1]), world_size=2'
    script.write_text("import sys\n" + block.replace('init_process_group("gloo"', f"init_process_group({rendezvous}"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, script, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors


@pytest.mark.skipif(not BLOCKS, reason="no README beside the tests (installed copy)")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n", 1)[0])
def test_example_runs(block, tmp_path):
    if "torch" in block:
        pytest.importorskip("torch")
    if "import cupy" in block:
        cupy = pytest.importorskip("cupy")
        if not cupy.cuda.is_available():
            pytest.skip("needs a CUDA device")
    if "init_process_group" in block:
        run_in_two_processes(block, tmp_path)
        return
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


@pytest.mark.skipif(not BLOCKS, reason="no README beside the tests (installed copy)")
def test_there_is_an_example_for_each_use():
    text = "".join(BLOCKS)
    for name in ("sparsekit.coalesce", "SparseAdam", "topk_mask", "TopK(", "Adam(", "topk_hook"):
        assert name in text
