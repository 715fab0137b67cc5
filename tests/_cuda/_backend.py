"""The CUDA backend as one more backend for NumPy arrays, so that every test of the suite runs on its kernels and driver code.

The device is the stand-in on the CPU, or, with ``SPARSEKIT_TEST_DEVICE=cuda``, the current CUDA device by way of CuPy. Inputs are
copied to it before a call, and compared after it. Outputs are the stand-in's as they are, without a copy, so that tests of memory
and of huge tables mean something; to and from a real device they are copied.
"""

import os
import threading
from types import SimpleNamespace

import numpy as np

ON_CUDA = os.environ.get("SPARSEKIT_TEST_DEVICE") == "cuda"
_OUTPUTS = {  # arguments by position that a function may write; of ``modes``, these fields
    "sparse_adam_step": (0, 1, 2),
    "sparse_adam_flush": (0, 1, 2),
    "sparse_adagrad_step": (0, 1),
    "sparse_adagrad_flush": (0,),
    "sparse_sgd_step": (0, 1),
    "sparse_sgd_flush": (0, 1),
}
_OUTPUTS_OF_MODES = ("max_exp_avg_sq", "row_step", "last_step")


def backend():
    """A module-like object that offers the protocol's functions."""
    import sparsekit_cupy
    from sparsekit_cupy import _device, _topk

    if not ON_CUDA:
        _topk.SAMPLES, _topk._FEW = 256, 2000  # so that arrays of the tests' size are sampled too
        from _cuda import host_device

        device = host_device()
        _device.find = lambda: device
    names = ("coalesce", "is_coalesced", "topk", *_OUTPUTS)
    functions = {name: _on_numpy(getattr(sparsekit_cupy, name), _OUTPUTS.get(name, ())) for name in names}
    return SimpleNamespace(
        devices=("cpu",), set_num_threads=sparsekit_cupy.set_num_threads, warmup=sparsekit_cupy.warmup, **functions
    )


_one_at_a_time = threading.Lock()  # the stand-in runs one kernel at a time


def _on_numpy(function, outputs):
    def call(*args, **kwargs):
        with _one_at_a_time:
            sent = []  # (host array, device array, whether it may be written)
            there = [_send(a, position in outputs, sent) for position, a in enumerate(args)]
            options = {name: _send(a, False, sent) for name, a in kwargs.items()}
            result = _fetch(function(*there, **options))
            for host, device, output in sent:
                back = _fetch(device)
                if back.tobytes() == host.tobytes():
                    continue
                assert output, f"{function.__name__} wrote to an input"
                host[...] = back
            return result

    call.__name__ = function.__name__
    return call


def _send(x, output, sent):
    if isinstance(x, np.ndarray) and output and not ON_CUDA:
        from _cuda._arrays import ndarray

        return ndarray(x.view(np.ndarray))
    if isinstance(x, np.ndarray):
        from sparsekit_cupy._device import current

        device = current().xp.asarray(x)
        sent.append((x, device, output))
        return device
    if hasattr(x, "_fields"):  # Modes
        return type(x)(*(_send(a, name in _OUTPUTS_OF_MODES, sent) for name, a in zip(x._fields, x, strict=True)))
    if isinstance(x, list):
        return [_send(a, False, sent) for a in x]
    return x


def _fetch(x):
    if isinstance(x, tuple | list):
        return type(x)(map(_fetch, x))
    return x.get() if hasattr(x, "get") else x
