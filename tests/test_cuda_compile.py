"""Every kernel as machine code for each architecture, as CuPy compiles it: none spills, blocks fit a multiprocessor.

NVRTC needs no device for this. What the kernels take is printed with ``pytest -s``; ``-m slow`` compiles every instance there is.
"""

import itertools
import re

import pytest
from conftest import CUPY_HOST, require

FLOATS = {"Half": 2, "BFloat16": 2, "float": 4, "double": 8}
INTEGERS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "signed char": 1, "short": 2, "int": 4, "i64": 8}
COMPLEX = {"Complex<float>": 8, "Complex<double>": 16}
STATES = ("Half", "BFloat16", "float", "double")
REGISTERS = 64 << 10  # of a multiprocessor
BLOCKS = 2  # of 256 threads that it should hold at least; 1 of Adam's kernel for all modes


USUAL = ("Half, float", "BFloat16, BFloat16", "float, float", "double, double")


def instances(every=False):
    """Names by file, as the driver code puts them together: all, or those that show each kernel and each way to compute."""
    reduce = []
    for c_type, size in (FLOATS | INTEGERS | COMPLEX).items():
        ops = ["Sum", "Prod"] if c_type not in ("signed char", "short", "int", "i64") else []  # sums wrap: unsigned
        ops += ["Mean"] * (c_type in FLOATS or c_type in COMPLEX)
        ops += ["Min", "Max"] * (c_type not in COMPLEX)
        if not every and c_type not in ("BFloat16", "float", "i64", "Complex<float>"):
            ops = ops[:1]
        packs = {1, 16 // size} if size > 1 else {1}
        reduce += [f"sparsekit_reduce<{c_type}, {op}, {pack}>" for op in ops for pack in (packs if op == "Sum" else {1})]
        reduce += [f"sparsekit_{kernel}_chunks<{c_type}, {op}>" for kernel in ("reduce", "join") for op in ops]
    select = [
        f"sparsekit_{kernel}<{c_type}>" for kernel in ("sample", "count_topk", "write_topk") for c_type in FLOATS | INTEGERS
    ]
    select += [f"sparsekit_histogram<{c_type}>" for c_type in FLOATS | INTEGERS]
    pairs = [f"{c_type}, {state}" for c_type, state in itertools.product(FLOATS, STATES)] if every else USUAL
    adam = [f"sparsekit_adam<{pair}>" for pair in pairs]
    for c_type, size in FLOATS.items():
        state = "double" if c_type == "double" else "float"
        adam += [f"sparsekit_adam_plain<{c_type}, {state}, {pack}>" for pack in {1, 16 // max(size, 4)}]
    group = ("pack", "count_heads", "write_starts", "coordinates", "is_coalesced")
    return {
        "group.cu": [f"sparsekit_{name}" for name in group],
        "coalesce.cu": reduce,
        "topk.cu": [*select, "sparsekit_plan", "sparsekit_next_digit", "sparsekit_localise"],
        "adam.cu": adam,
        "adagrad.cu": [f"sparsekit_adagrad<{pair}>" for pair in pairs],
        "sgd.cu": [f"sparsekit_sgd<{pair}>" for pair in pairs],
    }


@pytest.fixture(params=["75", "80", "90", "100", "120"])
def architecture(request):
    require(CUPY_HOST)
    return request.param


def check(architecture, files):
    from _cuda import _compile

    from sparsekit_cupy import _device

    assert architecture in _compile.ARCHITECTURES
    for file, names in files.items():
        for name, used in _compile.resources(_device.source(file), file, tuple(names), architecture).items():
            print(f"sm_{architecture} {name}: {used}")
            assert used.spilled == 0, name
            assert used.stack == 0, name
            assert used.registers * 256 * (1 if name.startswith("sparsekit_adam<") else BLOCKS) <= REGISTERS, name
            assert used.shared <= 48 << 10, name


def test_no_kernel_spills(architecture):
    check(architecture, instances())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_instance_spills(architecture):
    check(architecture, instances(every=True))


@pytest.mark.parametrize("file", instances())
def test_no_operation_may_be_contracted(file):
    """Where PTX names no rounding, a * b + c may become one operation, of other bits than the CPU's."""
    require(CUPY_HOST)
    from _cuda import _compile

    from sparsekit_cupy import _device

    for name in instances()[file]:
        text, _ = _compile.ptx(_device.source(file), file, name)
        assert re.findall(r"\b(?:add|sub|mul|mad|fma)(?:\.ftz)?\.f(?:32|64)\b.*", text) == [], name
        assert "fma" not in text, name


def test_the_list_of_kernels_is_complete():
    """Each __global__ of the backend is compiled above."""
    from sparsekit_cupy import _device

    files = instances()
    assert set(files) == {file.name for file in _device._FOLDER.glob("*.cu")}
    named = {name.split("<")[0] for names in files.values() for name in names}
    written = {kernel for file in files for kernel in re.findall(r"__global__ void .*?(sparsekit_\w+)\(", _device.source(file))}
    assert named == written
