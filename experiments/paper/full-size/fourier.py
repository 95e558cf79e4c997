"""The paper's network for Fashion-MNIST and KMNIST, its second convolution as products of Fourier transforms.

``problem = "fourier:kmnist"`` and ``"fourier:fashion_mnist"`` are what ``data = "kmnist"`` (or
``"fashion-mnist"``), ``partition = "dirichlet(0.5)"``, ``model = "cnn"`` and ``batch-size = 512`` are: the same
samples of each client, batches, first weights and function of the weights; ``_homogeneous`` behind the name
stands for ``partition = "homogeneous"``. Only rounding differs, and a gradient takes a quarter to a half of
the time: the second convolution has 31 of its 32 thousand million operations, and as a product of transforms a
tenth of these. Data sets are sought in ``$SOJOURN_DATA``.

Images of 22 x 22 and a kernel of 7 x 7 meet in 16 x 16 places, so transforms of 22 x 22 need no padding. They
are products with small dense matrices, in one direction after the other. A gradient is computed
for `IMAGES` at a time, which stay in the processor's cache, and images are the last axis of every array.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn

from sojourn._support.configuration import Table
from sojourn.training import Problem
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.experiment import experiment_from_table

CELL = {"partition": "dirichlet(0.5)", "model": "cnn", "batch-size": 512}
"""What a file says about the problem where it does not name one."""
HOMOGENEOUS = {**CELL, "partition": "homogeneous"}
"""The same with data divided evenly."""
FLEETS = {30: "three-clusters", 20: "twenty"}
"""The paper's fleets by their size."""
IMAGES = 64
"""Images whose arrays are in the cache together."""
KERNEL = 7
PIXELS = 28
INNER = PIXELS - KERNEL + 1
"""Pixels behind the first convolution, and the length of the transforms."""
OUTER = INNER - KERNEL + 1
"""Pixels behind the second one."""
POOLED = OUTER // 2
HALF = INNER // 2 + 1
"""Frequencies of a real transform: the others are their conjugates."""
FREQUENCIES = HALF * INNER
DEAD = np.uint8(4)
"""Stands for the place of the maximum where that is below 0, so that no gradient passes."""
ZERO = np.float32(0)


def kmnist(clients: int, seed: int) -> Problem:
    """KMNIST among ``clients`` as the paper divides it, Dirichlet(0.5)."""
    return in_fourier(built_in("kmnist", clients, seed))


def fashion_mnist(clients: int, seed: int) -> Problem:
    """Fashion-MNIST among ``clients`` as the paper divides it, Dirichlet(0.5)."""
    return in_fourier(built_in("fashion-mnist", clients, seed))


def kmnist_homogeneous(clients: int, seed: int) -> Problem:
    """KMNIST with samples of all classes at every one of ``clients``."""
    return in_fourier(built_in("kmnist", clients, seed, HOMOGENEOUS))


def fashion_mnist_homogeneous(clients: int, seed: int) -> Problem:
    """Fashion-MNIST with samples of all classes at every one of ``clients``."""
    return in_fourier(built_in("fashion-mnist", clients, seed, HOMOGENEOUS))


def built_in(
    data: str, clients: int, seed: int, cell: Mapping[str, object] = MappingProxyType(CELL)
) -> Problem:
    """What a file with ``data`` and ``cell`` learns; how fast the clients are does not matter to it."""
    table = {
        **cell,
        "data": data,
        "fleet": FLEETS[clients],
        "rounds": 1,
        "concurrency": clients,
        "learning-rate": 0.01,
        "strategy": [{"name": "uniform", "routing": "uniform"}],
    }
    return build_problem(experiment_from_table(Table(table, __name__), Path.cwd()), seed)


def in_fourier(problem: Problem) -> Problem:
    """The same problem with a `FourierNetwork` in place of its network."""
    return Problem(
        FourierNetwork(problem.model),
        problem.train_sets,
        problem.test_set,
        batch_size=problem.batch_size,
    )


class FourierNetwork(nn.Module):
    """The same function as a network of `grayscale_network`, whose weights it begins with."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.weights = nn.ParameterList(p.detach().clone() for p in network.parameters())

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = _Network.apply(images, *self.weights)  # type: ignore[no-untyped-call]
        return logits


class _Kept(NamedTuple):
    """What the backward pass needs of some images."""

    images: int
    columns: Tensor
    hidden: Tensor
    spectrum: Tensor
    pooled: Tensor
    place: Tensor


class _Network(torch.autograd.Function):
    """The whole network; its axes are named in comments: f = (u, v) are frequencies, r real and imaginary."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, *weights: Tensor) -> Tensor:
        first, first_bias, second, second_bias, last, last_bias = weights
        inner, outer, kind = len(first), len(second), first.dtype
        transform = _transforms(kind)
        first = first.reshape(inner, -1)
        product = _product(second)
        # The pooled pixels come before the channels here.
        last = last.view(len(last), outer, -1).transpose(1, 2).reshape(len(last), -1)
        kept, logits = [], []
        for part in torch.split(images, IMAGES):
            n = len(part)
            columns = _columns(part)
            raw = _times(first, _windows(columns))  # y, c x n
            hidden = torch.empty(INNER, INNER, inner, n, dtype=kind)
            _rectify(raw.view(INNER, inner, INNER, n).numpy(), first_bias.numpy(), hidden.numpy())
            rows = _times(transform.rows, hidden.view(INNER, INNER, -1))  # y, r u c n
            spectrum = _times(transform.columns, rows.view(2 * INNER, HALF, -1).transpose(0, 1))
            spectrum = spectrum.view(FREQUENCIES, 2 * inner, n)
            result = _times(product, spectrum)  # u v, r o n
            rows = _times(transform.columns_back, result.view(HALF, 2 * INNER, -1))  # u, r y o n
            raw = _times(transform.rows_back, rows.view(2 * HALF, OUTER, -1).transpose(0, 1))
            pooled = torch.empty(POOLED, POOLED, outer, n, dtype=kind)
            place = torch.empty(POOLED, POOLED, outer, n, dtype=torch.uint8)
            _pool(
                raw.view(OUTER, OUTER, outer, n).numpy(),
                second_bias.numpy(),
                pooled.numpy(),
                place.numpy(),
            )
            logits.append(torch.mm(last, pooled.view(-1, n)))
            kept.append(_Kept(n, columns, hidden, spectrum, pooled, place))
        ctx.kept, ctx.product, ctx.last = kept, product, last
        return torch.cat(logits, dim=1).t() + last_bias

    @staticmethod
    def backward(ctx: Any, outward: Tensor) -> tuple[Tensor | None, ...]:
        product, last, kind = ctx.product, ctx.last, outward.dtype
        outer, inner = product.shape[1] // 2, product.shape[2] // 2
        transform = _transforms(kind)
        d_last, d_product = torch.zeros_like(last), torch.zeros_like(product)
        d_first = torch.zeros(INNER, inner, KERNEL**2, dtype=kind)
        d_first_bias, d_second_bias = torch.zeros(inner, dtype=kind), torch.zeros(outer, dtype=kind)
        parts = torch.split(outward.t(), [kept.images for kept in ctx.kept], dim=1)
        for (n, columns, hidden, spectrum, pooled, place), d_logits in zip(
            ctx.kept, parts, strict=True
        ):
            d_last.addmm_(d_logits, pooled.view(-1, n).t())
            d_pooled = torch.mm(last.t(), d_logits).view(POOLED, POOLED, outer, n)
            d_raw = torch.empty(OUTER, OUTER, outer, n, dtype=kind)
            _unpool(d_pooled.numpy(), place.numpy(), d_raw.numpy(), d_second_bias.numpy())
            rows = _times(transform.rows_back_adjoint, d_raw.view(OUTER, OUTER, -1))  # y, r u o n
            rows = rows.view(2 * OUTER, HALF, -1).transpose(0, 1)
            d_result = _times(transform.columns_back_adjoint, rows).view(-1, 2 * outer, n)
            d_product += _times(d_result, spectrum.transpose(1, 2))
            d_spectrum = _times(product.transpose(1, 2), d_result)  # u v, r c n
            rows = _times(transform.columns_adjoint, d_spectrum.view(HALF, 2 * INNER, -1))
            rows = rows.view(2 * HALF, INNER, -1).transpose(0, 1)
            d_hidden = _times(transform.rows_adjoint, rows)  # y, x c n
            d_raw = torch.empty(INNER, inner, INNER, n, dtype=kind)
            _unrectify(
                d_hidden.view(INNER, INNER, inner, n).numpy(),
                hidden.numpy(),
                d_raw.numpy(),
                d_first_bias.numpy(),
            )
            windows = _windows(columns).transpose(1, 2)
            d_first += _times(d_raw.view(INNER, inner, -1), windows)
        return (
            None,
            d_first.sum(0).view(inner, 1, KERNEL, KERNEL),
            d_first_bias,
            _product_adjoint(d_product),
            d_second_bias,
            d_last.view(len(last), -1, outer).transpose(1, 2).reshape(len(last), -1),
            outward.sum(0),
        )


def _times(left: Tensor, right: Tensor) -> Tensor:
    """Products of matrices by NumPy, whose OpenBLAS is faster than PyTorch's products on these shapes."""
    return torch.from_numpy(np.matmul(left.numpy(), right.numpy()))


def _columns(images: Tensor) -> Tensor:
    """For each line of the images the pixels that the columns of a kernel meet: y, dx x n."""
    n = len(images)
    pixels = images.reshape(n, -1).t().contiguous()
    return pixels.as_strided((PIXELS, KERNEL, INNER * n), (PIXELS * n, n, 1)).contiguous()


def _windows(columns: Tensor) -> Tensor:
    """What a kernel meets at each height: the lines from there, which lie one after the other in memory."""
    _, _, length = columns.shape
    return columns.as_strided(
        (INNER, KERNEL**2, length), (KERNEL * length, length, 1), columns.storage_offset()
    )


class _Transforms(NamedTuple):
    """Real matrices: of lines and then of columns, back, and the adjoints.

    Their rows come in the order in which the next step finds them one after the other in memory.
    ``angle`` holds the cosines and sines of all frequencies at all places of a kernel.
    """

    rows: Tensor
    columns: Tensor
    columns_back: Tensor
    rows_back: Tensor
    rows_back_adjoint: Tensor
    columns_back_adjoint: Tensor
    columns_adjoint: Tensor
    rows_adjoint: Tensor
    cosines: Tensor
    sines: Tensor


@cache
def _transforms(kind: torch.dtype) -> _Transforms:
    places, across, down = np.arange(INNER), np.arange(HALF), np.arange(INNER)
    turn = 2 * np.pi / INNER
    angle = turn * np.outer(across, places)
    rows = np.stack([np.cos(angle), -np.sin(angle)])  # r, u; x
    angle = turn * np.outer(down, places)
    columns = _complex(np.cos(angle), -np.sin(angle))  # v, r; y, r
    angle = turn * np.outer(places[:OUTER], down)
    columns_back = (
        _complex(np.cos(angle), np.sin(angle)).transpose(1, 0, 2, 3) / INNER
    )  # r, y; v, r
    angle = turn * np.outer(places[:OUTER], across)
    twice = np.where((across == 0) | (across == HALF - 1), 1, 2)  # With the conjugates.
    rows_back = np.stack([twice * np.cos(angle), -twice * np.sin(angle)], axis=2) / INNER  # x; u, r
    x, y = np.meshgrid(np.arange(KERNEL), np.arange(KERNEL))
    angle = turn * (
        np.repeat(across, INNER)[:, None] * x.ravel() + np.tile(down, HALF)[:, None] * y.ravel()
    )

    def matrix(array: NDArray[np.float64], first: int) -> Tensor:
        return torch.from_numpy(array.reshape(first, -1)).to(kind).contiguous()

    return _Transforms(
        rows=matrix(rows, 2 * HALF),
        columns=matrix(columns, 2 * INNER),
        columns_back=matrix(columns_back, 2 * OUTER),
        rows_back=matrix(rows_back, OUTER),
        rows_back_adjoint=matrix(rows_back.transpose(2, 1, 0), 2 * HALF),
        columns_back_adjoint=matrix(columns_back.transpose(2, 3, 1, 0), 2 * INNER),
        columns_adjoint=matrix(columns.transpose(3, 2, 0, 1), 2 * INNER),
        rows_adjoint=matrix(rows.transpose(2, 1, 0), INNER),
        cosines=matrix(np.cos(angle), FREQUENCIES),
        sines=matrix(np.sin(angle), FREQUENCIES),
    )


def _complex(real: NDArray[np.float64], imaginary: NDArray[np.float64]) -> NDArray[np.float64]:
    """A complex matrix as a real one: (row, r; column, r)."""
    return np.stack(
        [np.stack([real, -imaginary], axis=2), np.stack([imaginary, real], axis=2)], axis=1
    )


def _product(kernels: Tensor) -> Tensor:
    """For each frequency the product with the conjugate of the kernels' transform: f; r, o; r, c."""
    outer, inner = kernels.shape[:2]
    transform, flat = _transforms(kernels.dtype), kernels.reshape(outer * inner, -1).t()
    real = torch.mm(transform.cosines, flat).view(-1, outer, inner)
    imaginary = torch.mm(transform.sines, flat).view(-1, outer, inner)
    upper, lower = torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)
    return torch.cat([upper, lower], dim=1)


def _product_adjoint(gradient: Tensor) -> Tensor:
    """The gradient of the kernels from that of `_product`."""
    outer, inner = gradient.shape[1] // 2, gradient.shape[2] // 2
    transform = _transforms(gradient.dtype)
    parts = gradient.view(-1, 2, outer, 2, inner)
    real = parts[:, 0, :, 0] + parts[:, 1, :, 1]
    imaginary = parts[:, 1, :, 0] - parts[:, 0, :, 1]
    flat = torch.mm(real.reshape(FREQUENCIES, -1).t(), transform.cosines)
    flat += torch.mm(imaginary.reshape(FREQUENCIES, -1).t(), transform.sines)
    return flat.view(outer, inner, KERNEL, KERNEL)


@njit(cache=True, nogil=True)
def _rectify(raw: Any, bias: Any, hidden: Any) -> None:
    """ReLU, and from y, c, x, n to y, x, c, n."""
    for y in range(raw.shape[0]):
        for c in range(raw.shape[1]):
            for x in range(raw.shape[2]):
                for i in range(raw.shape[3]):
                    value = raw[y, c, x, i] + bias[c]
                    hidden[y, x, c, i] = value if value > 0 else ZERO


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _unrectify(outward: Any, hidden: Any, raw: Any, bias: Any) -> None:
    """The gradients before the first ReLU, and of the bias."""
    for y in range(raw.shape[0]):
        for c in range(raw.shape[1]):
            for x in range(raw.shape[2]):
                total = ZERO
                for i in range(raw.shape[3]):
                    value = outward[y, x, c, i] if hidden[y, x, c, i] > 0 else ZERO
                    raw[y, c, x, i] = value
                    total += value
                bias[c] += total


@njit(cache=True, nogil=True)
def _pool(raw: Any, bias: Any, pooled: Any, place: Any) -> None:
    """The largest of four pixels with its place, the first where two are alike; then bias and ReLU."""
    for y in range(pooled.shape[0]):
        for x in range(pooled.shape[1]):
            for o in range(pooled.shape[2]):
                for i in range(pooled.shape[3]):
                    largest, where = raw[2 * y, 2 * x, o, i], np.uint8(0)
                    for k in range(1, 4):
                        value = raw[2 * y + k // 2, 2 * x + k % 2, o, i]
                        where = np.uint8(k) if value > largest else where
                        largest = value if value > largest else largest
                    largest += bias[o]
                    place[y, x, o, i] = where if largest > 0 else DEAD
                    pooled[y, x, o, i] = largest if largest > 0 else ZERO


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _unpool(outward: Any, place: Any, raw: Any, bias: Any) -> None:
    """The gradients before pooling, and of the bias."""
    for y in range(outward.shape[0]):
        for x in range(outward.shape[1]):
            for o in range(outward.shape[2]):
                for k in range(4):
                    for i in range(outward.shape[3]):
                        here = place[y, x, o, i] == k
                        raw[2 * y + k // 2, 2 * x + k % 2, o, i] = (
                            outward[y, x, o, i] if here else ZERO
                        )
                total = ZERO
                for i in range(outward.shape[3]):
                    total += outward[y, x, o, i] if place[y, x, o, i] != DEAD else ZERO
                bias[o] += total
