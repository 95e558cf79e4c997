"""The data sets: digits (always there) and the paper's four, read from their publishers' files."""

import importlib.util
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from sojourn._support.extensions import split_parameter
from sojourn.errors import DataNotFound, InvalidFile, InvalidInput, MissingExtra
from sojourn.training.data.formats import PublishedFile, read_binary, read_idx, read_pickled
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
class Release:
    """One form in which a data set is published: its folders, its files, and how they are read.

    ``label`` says where labels are: of the binary version how many bytes, of the Python version the key.
    """

    form: str
    folders: tuple[str, ...]
    files: tuple[PublishedFile, ...]
    label: Any = None

    def find(self, data_dir: str | os.PathLike[str] | None) -> Path | None:
        """The first folder that holds the first file; the others must then be there too."""
        for folder in self._candidates(data_dir):
            paths = [_plain_or_compressed(folder / file.name) for file in self.files]
            if not paths[0].is_file():
                continue
            for path, file in zip(paths, self.files, strict=True):
                if not path.is_file():
                    first = self.files[0].name
                    raise InvalidFile(f"{folder}: '{file.name}' is missing beside '{first}'")
            return folder
        return None

    def _candidates(self, data_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
        for root in (data_dir, os.environ.get(DATA_VARIABLE)):
            if root:
                yield from (Path(root) / folder for folder in (*self.folders, "."))
        yield from (DEBIAN_ROOT / folder for folder in self.folders)

    def read(self, folder: Path) -> tuple[Split, Split]:
        """The training and the test set."""
        files = [(_plain_or_compressed(folder / file.name), file) for file in self.files]
        if self.form == "idx":
            images, labels = files[::2], files[1::2]
            train, test = (
                (read_idx(*pixels, (28, 28))[:, None], read_idx(*classes))
                for pixels, classes in zip(images, labels, strict=True)
            )
            return train, test
        if self.form == "binary":
            parts = [read_binary(*file, label_bytes=self.label) for file in files]
        else:
            parts = [read_pickled(*file, label_key=self.label.encode()) for file in files]
        images_of, labels_of = zip(*parts[:-1], strict=True)
        return (np.concatenate(images_of), np.concatenate(labels_of)), parts[-1]


def _plain_or_compressed(path: Path) -> Path:
    """The plain version of a compressed file, if that alone is there."""
    plain = path.with_name(path.name.removesuffix(".gz"))
    return plain if plain.is_file() and not path.is_file() else path


@dataclass(frozen=True)
class Source:
    """How a data set's pixels are normalised, who publishes it, and in which forms.

    Without a release it is the digits that come with scikit-learn.
    """

    name: str
    classes: int
    side: int
    brightest: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    publisher: str = ""
    releases: tuple[Release, ...] = ()

    def read(self, data_dir: str | os.PathLike[str] | None) -> tuple[Split, Split]:
        """The training and the test set, of the first release that is found."""
        if not self.releases:
            return _read_digits()
        for release in self.releases:
            folder = release.find(data_dir)
            if folder is not None:
                return release.read(folder)
        wanted = self.releases[0]
        raise DataNotFound(
            f"the data set {self.name} is not on this machine. Get it from {self.publisher}, put its "
            f"files ({wanted.files[0].name}, ...) in a folder '{wanted.folders[0]}', and give the "
            f"folder that holds that one as --data-dir or in ${DATA_VARIABLE}."
        )


def _sources() -> dict[str, Source]:
    """The data sets of ``published.toml``, beside this module."""
    tables = tomllib.loads(Path(__file__).with_name("published.toml").read_text())
    return {
        name: Source(
            name,
            table["classes"],
            table["side"],
            table["brightest"],
            tuple(table["mean"]),
            tuple(table["deviation"]),
            table.get("publisher", ""),
            tuple(
                Release(
                    release["format"],
                    tuple(release["folders"]),
                    tuple(PublishedFile(**file) for file in release["files"]),
                    release.get("label-bytes") or release.get("label-key"),
                )
                for release in table.get("release", ())
            ),
        )
        for name, table in tables.items()
    }


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


def _read_digits() -> tuple[Split, Split]:
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


DATASETS = _sources()


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
    images: NDArray[np.generic],
    down: NDArray[np.int16],
    right: NDArray[np.int16],
    mirrored: NDArray[np.bool_],
    black: NDArray[np.generic],
    moved: NDArray[np.generic],
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
