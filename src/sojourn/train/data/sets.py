"""The data sets: digits (always there) and the paper's four, read from their publishers' files."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from sojourn.errors import DataNotFound, InvalidFile, InvalidInput, MissingExtra
from sojourn.extensions import split_parameter
from sojourn.train.data.formats import (
    CIFAR_10_BINARY,
    CIFAR_10_PICKLED,
    CIFAR_100_BINARY,
    CIFAR_100_PICKLED,
    CifarFile,
    read_binary,
    read_idx,
    read_pickled,
)
from sojourn.types import Bytes

Split = tuple[Bytes, Bytes]

DATA_VARIABLE = "SOJOURN_DATA"
DEBIAN_ROOT = Path("/usr/share/datasets")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Normalised images, their labels, and what is needed to augment them.

    ``train`` and ``test`` are pairs of a float tensor (N, channels, height, width) and a tensor of
    whole labels (N,). ``black`` is the value of a black pixel per channel after normalisation, and
    ``averaged`` how many pixels in a row have become one.
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    black: tuple[float, ...]
    averaged: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of one image."""
        return tuple(self.train[0].shape[1:])

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """The labels of the training images, for a partition."""
        return np.asarray(self.train[1].numpy(), dtype=np.int64)


def load_dataset(name: str = "digits", data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set called ``name``: digits, fashion-mnist, kmnist, cifar-10 or cifar-100.

    ``cifar-10(8)`` has images of 8 x 8 pixels, each the average of 4 x 4 and four times as large: so
    images keep their length, and a learning rate means about what it means for whole ones. Files are
    sought in ``data_dir``, then in ``$SOJOURN_DATA``, then where Debian's packages put them; each is
    checked for size and checksum before it is used.

    >>> digits = load_dataset("digits")
    >>> digits.shape, digits.classes, len(digits.train[0]), len(digits.test[0])
    ((1, 8, 8), 10, 1442, 355)
    """
    name, side = parse_data(name)
    if data_dir is not None and not Path(data_dir).is_dir():
        raise InvalidInput(f"the data directory '{data_dir}' is not a folder")
    source = DATASETS[name]
    averaged = 1 if side is None else source.side // side
    train, test = source.read(data_dir)
    mean = np.array(source.mean, np.float32).reshape(1, -1, 1, 1)
    scale = np.array(source.deviation, np.float32).reshape(1, -1, 1, 1)
    scale /= averaged
    black = tuple(float(value) for value in (-mean / scale).ravel())
    return Dataset(
        name=name,
        train=_tensors(train, source, mean, scale, averaged),
        test=_tensors(test, source, mean, scale, averaged),
        classes=source.classes,
        black=black,
        averaged=averaged,
    )


def parse_data(text: str) -> tuple[str, int | None]:
    """The name of a data set, and the side that its images are averaged down to, if they are.

    >>> parse_data("cifar-10(8)"), parse_data("digits")
    (('cifar-10', 8), ('digits', None))
    """
    name, given = split_parameter("data set", text, DATASETS)
    if given is None:
        return name, None
    side = DATASETS[name].side
    sides = [number for number in range(1, side) if side % number == 0]
    if given not in map(str, sides):
        raise InvalidInput(
            f"data '{text}': images of {side} x {side} pixels cannot be averaged down to a side of "
            f"{given}. Choose among {', '.join(map(str, sides))}, or write {name} for whole images."
        )
    return name, int(given)


@dataclass(frozen=True)
class Source:
    """Where a data set's files may lie, how they are read, and how its pixels are normalised."""

    classes: int
    side: int
    brightest: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    read: Callable[[str | os.PathLike[str] | None], tuple[Split, Split]]


def _tensors(
    split: Split,
    source: Source,
    mean: NDArray[np.float32],
    scale: NDArray[np.float32],
    averaged: int,
) -> tuple[Tensor, Tensor]:
    images, labels = split
    pixels = images[:, :, ::averaged, ::averaged].astype(np.float32)
    for down, right in list(np.ndindex(averaged, averaged))[1:]:
        pixels += images[:, :, down::averaged, right::averaged]
    pixels /= source.brightest * averaged**2
    pixels -= mean
    pixels /= scale
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))


def _read_digits(_: object) -> tuple[Split, Split]:
    """scikit-learn's embedded digits; every fifth of each class is kept for the test.

    Its file is read directly: to import scikit-learn takes longer than a client's whole task.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingExtra("sklearn", extra="train")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    held_out = np.zeros(labels.size, dtype=bool)
    for label in range(10):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def _find(
    name: str,
    folders: tuple[str, ...],
    files: tuple[str, ...],
    data_dir: str | os.PathLike[str] | None,
    publisher: str,
) -> Path:
    """The first folder that holds the first of ``files``; the others must then be there too."""
    for folder in _candidates(folders, data_dir):
        if not _present(folder, files[0]):
            continue
        for file in files:
            if not _present(folder, file):
                raise InvalidFile(f"{folder}: '{file}' is missing beside '{files[0]}'")
        return folder
    raise DataNotFound(
        f"the data set {name} is not on this machine. Get it from {publisher}, put its files "
        f"({files[0]}, ...) in a folder '{folders[0]}', and give the folder that holds that one "
        f"as --data-dir or in ${DATA_VARIABLE}."
    )


def _candidates(
    folders: tuple[str, ...], data_dir: str | os.PathLike[str] | None
) -> Iterator[Path]:
    variable = os.environ.get(DATA_VARIABLE)
    for root in (data_dir, variable):
        if root:
            yield from (Path(root) / folder for folder in (*folders, "."))
    yield from (DEBIAN_ROOT / folder for folder in folders)


def _present(folder: Path, file: str) -> bool:
    return _with_suffix(folder, file).is_file()


def _with_suffix(folder: Path, file: str) -> Path:
    """The compressed or the plain version of an IDX file, whichever is there."""
    plain = folder / file.removesuffix(".gz")
    return plain if plain.is_file() and not (folder / file).is_file() else folder / file


def _idx_reader(
    name: str, folders: tuple[str, ...], publisher: str, checksums: tuple[str, str, str, str]
) -> Callable[[str | os.PathLike[str] | None], tuple[Split, Split]]:
    def read(data_dir: str | os.PathLike[str] | None) -> tuple[Split, Split]:
        folder = _find(name, folders, _IDX_FILES, data_dir, publisher)
        shapes = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
        arrays = [
            read_idx(_with_suffix(folder, file), shape, checksum)
            for file, shape, checksum in zip(_IDX_FILES, shapes, checksums, strict=True)
        ]
        return (arrays[0][:, None], arrays[1]), (arrays[2][:, None], arrays[3])

    return read


_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _cifar_reader(
    name: str,
    binary: tuple[str, int, tuple[CifarFile, ...]],
    pickled: tuple[str, bytes, tuple[CifarFile, ...]],
) -> Callable[[str | os.PathLike[str] | None], tuple[Split, Split]]:
    """Reads the binary version or else the Python version; the last file is the test."""

    def read(data_dir: str | os.PathLike[str] | None) -> tuple[Split, Split]:
        folder_name, label_bytes, files = binary
        names = tuple(file.name for file in files)
        publisher = f"www.cs.toronto.edu/~kriz/cifar.html (the binary version of {name.upper()})"
        try:
            folder = _find(name, (folder_name,), names, data_dir, publisher)
        except DataNotFound as not_found:
            folder_name, label_key, files = pickled
            names = tuple(file.name for file in files)
            try:
                folder = _find(name, (folder_name,), names, data_dir, publisher)
            except DataNotFound:
                raise not_found from None
            parts = [read_pickled(folder / f.name, f, label_key=label_key) for f in files]
        else:
            parts = [read_binary(folder / f.name, f, label_bytes=label_bytes) for f in files]
        train = parts[:-1]
        images = np.concatenate([part[0] for part in train])
        return (images, np.concatenate([part[1] for part in train])), parts[-1]

    return read


DATASETS = {
    "digits": Source(10, 8, 16.0, (0.3053,), (0.3760,), _read_digits),
    "fashion-mnist": Source(
        10,
        28,
        255.0,
        (0.2860,),
        (0.3530,),
        _idx_reader(
            "fashion-mnist",
            ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
            "github.com/zalandoresearch/fashion-mnist (or Debian's dataset-fashion-mnist)",
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
    ),
    "kmnist": Source(
        10,
        28,
        255.0,
        (0.1918,),
        (0.3483,),
        _idx_reader(
            "kmnist",
            ("kmnist", "KMNIST/raw", "KMNIST"),
            "codh.rois.ac.jp/kmnist (Kuzushiji-MNIST)",
            (
                "7112ba9ec422d98de4885262d4a4dff14cc4fefb81c11ace8bf563a8255df5c3",
                "2a16eeae62da984b8bd24fa32e31d47291f01dac3fe84d5594f304f71e7d374b",
                "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
                "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
            ),
        ),
    ),
    "cifar-10": Source(
        10,
        32,
        255.0,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        _cifar_reader(
            "cifar-10",
            ("cifar-10-batches-bin", 1, CIFAR_10_BINARY),
            ("cifar-10-batches-py", b"labels", CIFAR_10_PICKLED),
        ),
    ),
    "cifar-100": Source(
        100,
        32,
        255.0,
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        _cifar_reader(
            "cifar-100",
            ("cifar-100-binary", 2, CIFAR_100_BINARY),
            ("cifar-100-python", b"fine_labels", CIFAR_100_PICKLED),
        ),
    ),
}


@dataclass(frozen=True)
class CropAndFlip:
    """Shift each image by up to ``padding`` pixels either way, and mirror every second one.

    ``black`` is what a padded pixel is, per channel: black as it is after normalisation.

    >>> images = torch.ones(2, 3, 4, 4)
    >>> generator = torch.Generator().manual_seed(1)
    >>> CropAndFlip(black=(0.0, 0.0, 0.0), padding=1)(images, generator).shape
    torch.Size([2, 3, 4, 4])
    """

    black: tuple[float, ...]
    padding: int = 4

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """``images`` (N, C, H, W), cropped and flipped."""
        return self.moved(images, self.draw(len(images), generator))

    def draw(self, count: int, generator: torch.Generator) -> NDArray[np.int16]:
        """What becomes of so many images: how far down and right they are seen, and whether mirrored."""
        shifts = torch.randint(2 * self.padding + 1, (2, count, 1), generator=generator)
        mirrored = torch.randint(2, (count, 1), generator=generator, dtype=torch.bool)
        drawn = np.empty((3, count), dtype=np.int16)
        drawn[:2], drawn[2] = shifts.numpy()[..., 0], mirrored.numpy()[:, 0]
        drawn[:2] -= self.padding
        return drawn

    def moved(self, images: Tensor, drawn: NDArray[np.int16]) -> Tensor:
        """``images`` as was ``drawn`` for them, shape (3, N)."""
        given = images.contiguous().numpy()
        moved = np.empty_like(given)
        down, right, mirrored = drawn
        _crop(given, down, right, mirrored != 0, np.asarray(self.black, given.dtype), moved)
        return torch.from_numpy(moved)


@njit(cache=True, nogil=True)
def _crop(
    images: NDArray[Any],
    down: NDArray[np.int16],
    right: NDArray[np.int16],
    mirrored: NDArray[np.bool_],
    black: NDArray[Any],
    moved: NDArray[Any],
) -> None:
    """Images (N, C, H, W) as seen through a window that lies so far ``down`` and to the ``right``."""
    count, channels, height, width = images.shape
    for n in range(count):
        first, last = max(0, -right[n]), min(width, width - right[n])
        for c in range(channels):
            for row in range(height):
                seen, line = row + down[n], moved[n, c, row]
                line[:] = black[c]
                if not 0 <= seen < height or first >= last:
                    continue
                part = images[n, c, seen, first + right[n] : last + right[n]]
                if mirrored[n]:
                    line[width - last : width - first] = part[::-1]
                else:
                    line[first:last] = part
