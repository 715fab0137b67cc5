"""The README's Python examples run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if README.exists() else []


@pytest.mark.skipif(not BLOCKS, reason="no README beside the tests (installed copy)")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n", 1)[0])
def test_example_runs(block):
    if "torch" in block:
        pytest.importorskip("torch")
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


@pytest.mark.skipif(not BLOCKS, reason="no README beside the tests (installed copy)")
def test_there_is_an_example_for_each_use():
    text = "".join(BLOCKS)
    for name in ("sparsekit.coalesce", "SparseAdam", "topk_mask"):
        assert name in text
