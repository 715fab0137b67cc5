"""A strict stand-in for the ``cupy`` namespace, backed by NumPy.

It refuses what CuPy refuses and NumPy would let pass: NumPy arrays as operands, implicit conversion, sorts that are not stable,
functions, methods and keywords that CuPy lacks (looked up in CuPy itself, which imports without a GPU), arrays of another device
than the current one. And more, to find what would be slow or undefined: iteration, writes to one place twice, functions that
sort by comparison. ``empty`` is poisoned, reductions give 0-d arrays, and ``syncs`` counts how often the host waits.
"""

import inspect
import re
import sys

import numpy as np

try:
    import cupy
except ImportError:
    cupy = None

syncs = 0  # how often the host waited for the device, so far
current_device = 0

# Names that are NumPy's own in CuPy too.
_FROM_NUMPY = {
    *("bool_", "complex64", "complex128", "float16", "float32", "float64", "intp"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("can_cast", "dtype", "finfo", "iinfo", "inf", "nan", "newaxis", "pi", "promote_types"),
}
# The number of results depends on the data, or the result is Python's: the host waits.
_WAITING = {
    *("allclose", "argwhere", "array_equal", "bincount", "compress", "extract"),
    *("flatnonzero", "item", "nonzero", "tolist", "tobytes", "unique"),
    *("ravel_multi_index", "shares_memory", "unravel_index"),
}
_NO_COMPUTATION = {"conj", "get", "item", "ravel", "reshape", "squeeze", "swapaxes", "tobytes", "tolist", "transpose", "view"}
_REFUSED = {
    "lexsort": "it sorts by comparison, once for each key: sort packed keys",
    "partition": "it sorts everything from k = 512",
    "argpartition": "it sorts everything from k = 512",
}


class Device:
    """A device by number; ``with device:`` makes it the current one."""

    def __init__(self, id):
        self.id = id
        self._before = []

    def __enter__(self):
        global current_device
        self._before.append(current_device)
        current_device = self.id
        return self

    def __exit__(self, *exception):
        global current_device
        current_device = self._before.pop()

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"


class _Pointer:
    def __init__(self, ptr):
        self.ptr = ptr


class _Flags:
    """Layout only: on a device nothing is read-only or unaligned."""

    def __init__(self, flags):
        self.c_contiguous, self.f_contiguous, self.owndata = flags.c_contiguous, flags.f_contiguous, flags.owndata


class ndarray:
    """Stands for cupy.ndarray. ``_array`` is the NumPy array that holds its elements."""

    __array_ufunc__ = None  # NumPy array + ours comes to our reflected operator, which refuses it
    __hash__ = None
    __slots__ = ("__weakref__", "_array", "_device")

    def __init__(self, array, device=None):
        self._array = array
        self._device = current_device if device is None else device

    # What CuPy lacks: how the core finds the namespace. (For cupy.ndarray it goes by the package.)
    def __array_namespace__(self, *, api_version=None):
        return sys.modules[__name__]

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __iter__(self):
        raise TypeError("iteration launches a kernel or waits for each item")

    def __repr__(self):
        return f"device {self._array!r}"

    def __len__(self):
        return len(self._array)

    @property
    def data(self):
        return _Pointer(self._array.ctypes.data)

    @property
    def device(self):
        return Device(self._device)

    @property
    def flags(self):
        return _Flags(self._array.flags)

    def get(self):
        return np.array(_wait(self))

    def __int__(self):
        return int(_wait(self))

    def __float__(self):
        return float(_wait(self))

    def __complex__(self):
        return complex(_wait(self))

    def __bool__(self):
        return bool(_wait(self))

    def __getitem__(self, key):
        keys = _arrays_of(key)
        if any(k.dtype == bool for k in keys):
            _wait()
        if keys:  # else a view, which is made without the device
            _host(self)
        return _device(self._array[_key(key)], self)

    def __setitem__(self, key, value):
        if isinstance(value, list | tuple):
            raise TypeError(f"Unsupported type {type(value)}")
        keys = _arrays_of(key)
        key, value = _key(key), _host(value)
        if any(k.dtype == bool for k in keys) and np.size(value) > 1:
            _wait()
        elif keys and np.size(value) > 1:
            places = np.arange(self._array.size).reshape(self._array.shape)[key]
            if np.unique(places).size < places.size:
                raise AssertionError("one place is written twice: on a device either value may win")
        _host(self)[key] = value

    def __getattr__(self, name):
        if name.startswith("__") or not hasattr(np.ndarray, name) or (cupy and not hasattr(cupy.ndarray, name)):
            raise AttributeError(f"cupy.ndarray has no attribute {name!r}")
        _refuse(name)
        value = getattr(self._array, name)
        if not callable(value):
            return _device(value, self)

        def method(*args, **kwargs):
            _check_keywords(name, kwargs)
            if name not in _NO_COMPUTATION:
                _host(self)
            if name in _WAITING:
                _wait()
            return _device(value(*_host(args), **_stable(name, _host(kwargs))), self, *args, *kwargs.values())

        return method


def _operator(name):
    def method(self, *others):
        if any(isinstance(x, list | tuple | np.ndarray) for x in others):
            raise TypeError(f"Unsupported type {type(others[0])}")
        result = getattr(_host(self), name)(*_host(others))
        return result if result is NotImplemented else _device(result, self)

    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
_OTHERS = ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert")
for _name in _BINARY:
    for _form in (f"__{_name}__", f"__r{_name}__", f"__i{_name}__"):
        if hasattr(np.ndarray, _form):
            setattr(ndarray, _form, _operator(_form))
for _name in _OTHERS:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


def _wait(x=None):
    global syncs
    syncs += 1
    return None if x is None else x._array


def _host(x):
    """NumPy's view of arguments of a computation on the current device."""
    if isinstance(x, ndarray):
        if x._device != current_device:
            raise ValueError(
                f"Array device must be same as the current device: array device = {x._device} while current = {current_device}"
            )
        return x._array
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    if isinstance(x, list | tuple):
        return type(x)(map(_host, x))
    return {key: _host(value) for key, value in x.items()} if isinstance(x, dict) else x


def _device(x, *sources):
    """A result on the device; one of the sources itself, where NumPy gave that one back."""
    if isinstance(x, list | tuple):
        return type(x)(_device(item, *sources) for item in x)
    if not isinstance(x, np.ndarray | np.generic):
        return x
    for source in sources:
        if isinstance(source, ndarray) and source._array is x:
            return source
    device = sources[0]._device if sources and isinstance(sources[0], ndarray) else current_device
    return ndarray(np.asarray(x), device)


def _key(key):
    if any(isinstance(k, list | np.ndarray) for k in (key if isinstance(key, tuple) else (key,))):
        raise TypeError("an index on the host would be copied to the device: use a device array")
    return _host(key)


def _arrays_of(key):
    return [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, ndarray | np.ndarray)]


def _stable(name, kwargs):
    if name not in ("argsort", "sort"):
        return kwargs
    if kwargs.get("kind") not in (None, "stable"):
        raise ValueError("kind must be None or 'stable'")
    return kwargs | {"kind": "stable"}


def _refuse(name):
    if name in _REFUSED:
        raise AttributeError(f"{name} is not for device arrays: {_REFUSED[name]}")


def _check_keywords(name, kwargs):
    """A method's keywords, against the signature in the first line of CuPy's docstring."""
    if cupy and kwargs:
        head = (getattr(cupy.ndarray, name).__doc__ or "").partition("\n")[0]
        known = {re.split(r"\W+", parameter.partition("=")[0].strip())[-1] for parameter in head.split("(", 1)[1].split(",")}
        if name != "view" and not set(kwargs) <= known:
            raise TypeError(f"cupy.ndarray.{name} has no keyword {', '.join(set(kwargs) - known)}")


# Integers become large ones, which no test data holds and no index may be.
_POISON = {"b": True, "i": 0x4D, "u": 0x4D, "f": np.nan, "c": complex(np.nan, np.nan)}


def empty(shape, dtype=float, order="C"):
    array = np.empty(shape, dtype, order)
    poison = _POISON[array.dtype.kind]
    array[...] = int.from_bytes(bytes([poison] * array.itemsize)) if array.dtype.kind in "iu" else poison
    return ndarray(array)


def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    return empty(_host(prototype).shape if shape is None else shape, prototype.dtype if dtype is None else dtype)


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, ndarray):
        return _device(np.array(_host(a), dtype, order=order, copy=copy), a)
    return ndarray(np.array(a, dtype, order=order))  # host to device, asked for


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    return asarray(obj, dtype, order, copy=copy or None)


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get()


def may_share_memory(a, b, max_work=None):
    return np.may_share_memory(a._array, b._array)  # of addresses, whatever the device


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _FROM_NUMPY:
        return getattr(np, name)
    if not hasattr(np, name) or (cupy and not hasattr(cupy, name)):
        raise AttributeError(f"cupy has no {name!r}")
    _refuse(name)
    function, signature = getattr(np, name), None
    if cupy and not isinstance(getattr(cupy, name), cupy.ufunc):
        signature = inspect.signature(getattr(cupy, name))

    def call(*args, **kwargs):
        if signature is not None:
            signature.bind(*args, **kwargs)
        elif not set(kwargs) <= {"out", "dtype", "casting"}:
            raise TypeError(f"cupy.{name} has no keyword {', '.join(kwargs)}")
        if name in _WAITING or (name == "where" and len(args) == 1):
            _wait()
        return _device(function(*_host(args), **_stable(name, _host(kwargs))), *args, *kwargs.values())

    call.__name__ = name
    return call
