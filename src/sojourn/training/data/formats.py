"""Image data sets as their publishers ship them: IDX files and CIFAR archives, each with a checksum."""

import gzip
import hashlib
import io
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.errors import InvalidFile
from sojourn.types import Bytes

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class PublishedFile:
    """One file: its name, how many samples it holds, and its checksum.

    ``digest`` is a SHA-256 of the decompressed content, so that a file that was compressed anew still
    counts as the published one; for CIFAR's Python version it is the MD5 sum that the publisher gives.
    """

    name: str
    samples: int
    digest: str


def read_idx(path: Path, expected: PublishedFile, shape: tuple[int, ...] = ()) -> Bytes:
    """The array (N, *shape) of unsigned bytes in an IDX file, plain or compressed.

    A header of four bytes and four per dimension stands before the array; the checksum covers it.
    """
    header, whole = 4 * (2 + len(shape)), (expected.samples, *shape)
    content = _checked(path, expected, header + int(np.prod(whole)))
    return np.frombuffer(content, np.uint8, offset=header).reshape(whole)


def read_binary(path: Path, expected: PublishedFile, *, label_bytes: int) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,); of several label bytes the last is the fine one."""
    record = label_bytes + PIXELS
    content = _checked(path, expected, expected.samples * record)
    rows = np.frombuffer(content, np.uint8).reshape(expected.samples, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].copy()


def read_pickled(path: Path, expected: PublishedFile, *, label_key: bytes) -> tuple[Bytes, Bytes]:
    """Images and labels of a file of the Python version.

    A pickle can run code, so its MD5 sum is compared with the published one before a byte of it is
    interpreted, and even then only NumPy's arrays may be rebuilt from it.
    """
    content = _checked(path, expected)
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        images = np.asarray(batch[b"data"], np.uint8).reshape(expected.samples, 3, 32, 32)
        labels = np.asarray(batch[label_key], np.uint8).reshape(expected.samples)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise InvalidFile(f"{path}: not a CIFAR batch ({error})") from error
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds plain containers and NumPy arrays, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _ARRAY_MODULES and name in _ARRAY_NAMES:
            return super().find_class(_ARRAY_MODULES[module], name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


_ARRAY_MODULES = {
    "numpy": "numpy",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy._core.multiarray": "numpy._core.multiarray",
    "_codecs": "_codecs",
}
_ARRAY_NAMES = {"_reconstruct", "ndarray", "dtype", "encode"}


def _checked(path: Path, expected: PublishedFile, size: int | None = None) -> bytes:
    """The content of a file, decompressed, if it has this size and the published checksum.

    Hardly more than the expected size is ever decompressed.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(-1 if size is None else size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidFile(f"{path}: cut short or damaged ({error}). Fetch it again.") from error
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror or error})") from error
    if size is not None and len(content) != size:
        verdict = "cut short" if len(content) < size else "too long"
        raise InvalidFile(
            f"{path}: {verdict}: {len(content)} bytes where {size} are expected. Fetch it again."
        )
    algorithm = "md5" if len(expected.digest) == 32 else "sha256"
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected.digest:
        raise InvalidFile(
            f"{path}: damaged or not the published file: its {algorithm.upper()} sum is {found} "
            f"where {expected.digest} is expected. Nothing was read from it. Fetch it again."
        )
    return content
