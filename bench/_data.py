"""Inputs: random ones, and real ones from text, finite elements and a trained network. The same every time, never zeros."""

import functools
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._case import Arrays
from bench._text import read_text

TABLE_ROWS, WIDTH = 1_000_000, 64
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}

Array = NDArray[Any]


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Standard normal; integers from -1000 to 1000 without 0."""
    if dtype == "int64":
        return np.asarray(rng.integers(1, 1001, shape) * rng.choice([-1, 1], shape))
    if dtype == "float64":
        return rng.standard_normal(shape)
    return narrow(rng.standard_normal(shape, np.float32), dtype)


def narrow(x: NDArray[np.float32], dtype: str) -> Array:
    """float32 values in another float dtype; bfloat16 as bit patterns, rounded towards zero."""
    if dtype == "bfloat16":
        return (x.view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype, copy=False)


def widen(x: Array, dtype: str) -> Array:
    """What is stored as float64, exactly; integers stay integers."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x if x.dtype.kind in "iu" else x.astype(np.float64)


def as_numpy(x: Array, dtype: str) -> Array:
    """What is stored as an array of its dtype: bit patterns become ml_dtypes.bfloat16."""
    if dtype != "bfloat16":
        return x
    import ml_dtypes

    return x.view(ml_dtypes.bfloat16)


def as_torch(x: Array, dtype: str) -> Any:
    """What is stored as a torch tensor on the same memory."""
    import torch

    tensor = torch.from_numpy(x.view(np.int16) if dtype == "bfloat16" else x)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def bits(x: Array) -> Array:
    """As stored: ml_dtypes.bfloat16 becomes bit patterns."""
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def torch_bits(x: Any) -> Array:
    """A torch tensor as stored: bfloat16 becomes bit patterns."""
    import torch

    x = x.detach()
    return np.asarray(x.view(torch.int16).numpy()).view(np.uint16) if x.dtype == torch.bfloat16 else np.asarray(x.numpy())


# Coordinates and values: {"indices": (sparse_ndim, n), "values": (n, *dense), "shape": sparse dims, then dense ones}


def triplet(indices: Array, entries: Array, shape: tuple[int, ...]) -> Arrays:
    return {"indices": np.ascontiguousarray(indices), "values": entries, "shape": np.array(shape, np.int64)}


def uniform_pairs(n: int, shape: tuple[int, ...], dtype: str = "float32") -> Arrays:
    """n // 2 distinct uniform coordinates, every one twice, shuffled."""
    rng = np.random.default_rng(n)
    keys = _distinct(rng, n // 2, shape)
    keys = rng.permutation(np.concatenate([keys, keys]))
    return triplet(np.stack(np.unravel_index(keys, shape)), values(rng, (len(keys),), dtype), shape)


def unique(n: int, shape: tuple[int, ...], *, ordered: bool) -> Arrays:
    """n distinct uniform coordinates, in order or shuffled."""
    rng = np.random.default_rng(n)
    keys = _distinct(rng, n, shape)
    if ordered:
        keys.sort()
    return triplet(np.stack(np.unravel_index(keys, shape)), values(rng, (n,), "float32"), shape)


def hot(n: int, shape: tuple[int, ...], dtype: str = "float32") -> Arrays:
    """n entries at one coordinate."""
    indices = np.repeat(np.array(shape)[:, None] // 3, n, axis=1)
    return triplet(indices, values(np.random.default_rng(n), (n,), dtype), shape)


def stiffness(element: str, refinements: int) -> Arrays:
    """Triplets of a finite-element stiffness matrix of the Laplace operator on a square of triangles, as assembled."""
    import skfem
    from skfem.models.poisson import laplace

    mesh = skfem.MeshTri().refined(refinements)
    data = laplace.coo_data(skfem.Basis(mesh, getattr(skfem, f"ElementTri{element}")()))
    return triplet(data.indices.astype(np.int64), data.data, tuple(int(n) for n in data.shape))


def rows(distribution: str, n: int, dtype: str = "float32", table_rows: int = TABLE_ROWS, width: int = WIDTH) -> Arrays:
    """The gradient of an embedding table: n rows at ids of the distribution."""
    rng = np.random.default_rng(n)
    return triplet(ids(rng, distribution, n, table_rows)[None], values(rng, (n, width), dtype), (table_rows, width))


def ids(rng: np.random.Generator, distribution: str, n: int, dim: int) -> Array:
    """n ids below dim: uniform; Zipf(1.2) with ranks scattered over the ids; or tokens, numbered by falling frequency."""
    if distribution == "uniform":
        return rng.integers(0, dim, n)
    if distribution == "tokens":
        return np.asarray(np.resize(_tokens(), n) % dim)
    cdf = np.cumsum(np.arange(1, dim + 1) ** -1.2)
    ranks = np.searchsorted(cdf, rng.random(n) * cdf[-1], side="right")
    return np.asarray(rng.permutation(dim)[np.minimum(ranks, dim - 1)])


@functools.cache
def _tokens() -> Array:
    return read_text().ids.astype(np.int64)


def _distinct(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape))
    if size < 4 * n:
        return rng.permutation(size)[:n]
    found = np.unique(rng.integers(0, size, n + n // 4 + 100))
    return rng.permutation(found)[:n]


# Arrays for topk: {"0": ..., "1": ...}, one list as the operation takes it


def normal(n: int, dtype: str = "float32") -> Arrays:
    return {"0": values(np.random.default_rng(n), (n,), dtype)}


def ascending(n: int) -> Arrays:
    """Normal values in order of magnitude, the largest last."""
    x = normal(n)["0"]
    return {"0": x[np.argsort(np.abs(x), kind="stable")]}


def constant(n: int) -> Arrays:
    return {"0": np.full(n, -0.5, np.float32)}


def network_gradients(width: int, steps: int = 30) -> Arrays:
    """Gradients of a perceptron 64-width-width-10 part way through learning scikit-learn's handwritten digits.

    width**2 + 76 * width + 10 numbers in 6 arrays.
    """
    import sklearn.datasets
    import torch

    digits = sklearn.datasets.load_digits()
    images = torch.from_numpy(digits.data.astype(np.float32) / 16)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    torch.manual_seed(0)
    sizes = (64, width, width, 10)
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        batch = torch.arange(step * 128, (step + 1) * 128) % len(images)
        optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    return {str(i): p.grad.numpy().copy() for i, p in enumerate(model.parameters()) if p.grad is not None}


def resnet50_gradients(dtype: str = "float32") -> Arrays:
    """Normal values in the shapes of ResNet-50's parameters, each layer at a scale of its own."""
    rng = np.random.default_rng(50)
    return {
        str(i): narrow(rng.standard_normal(shape, np.float32) * np.float32(np.prod(shape[1:]) ** -0.5), dtype)
        for i, shape in enumerate(resnet50_shapes())
    }


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The 161 parameters of ResNet-50 (He et al. 2015, table 1) in torchvision's order: 25,557,032 numbers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(planes, channels, 1, 1), (planes,), (planes,)]
            shapes += [(planes, planes, 3, 3), (planes,), (planes,)]
            shapes += [(4 * planes, planes, 1, 1), (4 * planes,), (4 * planes,)]
            if block == 0:
                shapes += [(4 * planes, channels, 1, 1), (4 * planes,), (4 * planes,)]
            channels = 4 * planes
    return [*shapes, (1000, channels), (1000,)]
