"""What users reported about the peers (FIELD.md), B-3: tables too large for 32 bits, and for a second copy."""

import tracemalloc

import numpy as np
import pytest

import sparsekit

# (step, names of its states)
STEPS = {
    "adam": (sparsekit.sparse_adam_step, ("exp_avg", "exp_avg_sq"), {}),
    "adagrad": (sparsekit.sparse_adagrad_step, ("state_sum",), {}),
    "sgd": (sparsekit.sparse_sgd_step, (), {"momentum": 0.9}),
}


def call(name, param, states, indices, values, **options):
    step, positional, more = STEPS[name]
    buffer = {} if positional else {"momentum_buffer": states[0]}
    step(param, *(states if positional else ()), indices, values, step=1, lr=0.5, **more, **buffer, **options)


@pytest.mark.parametrize("name", STEPS)
def test_b3_66_tables_of_more_than_2_to_the_31_elements(backend, name):
    """TransformerEngine#2918: 32-bit sizes, illegal access at 2.48e9 elements. Pages that nobody touches take no memory."""
    shape = 2**25 + 3, 64
    try:
        param = np.zeros(shape, np.float16)
        states = [np.zeros(shape, np.float32) for _ in range(max(1, len(STEPS[name][1])))]
    except MemoryError:
        pytest.skip("this system gives no address space that memory does not stand behind")
    assert param.size > 2**31
    rows = np.array([shape[0] - 1, 2**25, shape[0] - 1])
    call(name, param, states, rows, np.ones((3, 64), np.float16), backend=backend)
    for a in (param, *states):
        assert a[shape[0] - 1].all() and a[2**25].all()
        assert not a[0].any() and not a[shape[0] - 2].any()
        assert not a.reshape(-1)[(shape[0] - 1) * 64 - 2**31 :][:64].any()  # where 32 bits would have led


@pytest.mark.parametrize("name", STEPS)
def test_b3_67_nothing_of_the_size_of_the_table(backend, name):
    """keras#19992, pytorch: m * (1 - beta) was dense; about 8 temporaries."""
    param = np.zeros((100_000, 64), np.float32)
    states = [np.zeros_like(param) for _ in range(max(1, len(STEPS[name][1])))]
    rows, values = np.arange(0, 1000, 10), np.ones((100, 64), np.float32)
    call(name, param, states, rows, values, backend=backend)  # loads what it needs
    tracemalloc.start()
    call(name, param, states, rows, values, backend=backend)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * param.nbytes
