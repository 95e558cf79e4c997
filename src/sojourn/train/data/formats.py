"""Image data sets as their publishers ship them: IDX files and CIFAR archives."""

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
class CifarFile:
    """One published file: its name, how many images it holds, and its checksum.

    ``digest`` is a SHA-256 for the binary version, and for the Python version the MD5 sum that the
    publisher gives.
    """

    name: str
    images: int
    digest: str


def read_binary(path: Path, expected: CifarFile, *, label_bytes: int) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,); of several label bytes the last is the fine one."""
    record = label_bytes + PIXELS
    content = _checked(path, expected, "sha256", size=expected.images * record)
    rows = np.frombuffer(content, np.uint8).reshape(expected.images, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].copy()


def read_pickled(path: Path, expected: CifarFile, *, label_key: bytes) -> tuple[Bytes, Bytes]:
    """Images and labels of a file of the Python version.

    A pickle can run code, so its MD5 sum is compared with the published one before a byte of it is
    interpreted, and even then only NumPy's arrays may be rebuilt from it.
    """
    content = _checked(path, expected, "md5")
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        images = np.asarray(batch[b"data"], np.uint8).reshape(expected.images, 3, 32, 32)
        labels = np.asarray(batch[label_key], np.uint8).reshape(expected.images)
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


def _checked(path: Path, expected: CifarFile, algorithm: str, size: int | None = None) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error
    if size is not None and len(content) != size:
        verdict = "cut short" if len(content) < size else "too long"
        raise InvalidFile(
            f"{path}: {verdict}: {len(content)} bytes where {size} are expected. Fetch it again."
        )
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected.digest:
        raise InvalidFile(
            f"{path}: damaged or not the published file: its {algorithm.upper()} sum is {found} "
            f"where {expected.digest} is expected. Nothing was read from it. Fetch it again."
        )
    return content


CIFAR_10_BINARY = (
    CifarFile(
        "data_batch_1.bin",
        10000,
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    ),
    CifarFile(
        "data_batch_2.bin",
        10000,
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    ),
    CifarFile(
        "data_batch_3.bin",
        10000,
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    ),
    CifarFile(
        "data_batch_4.bin",
        10000,
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    ),
    CifarFile(
        "data_batch_5.bin",
        10000,
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    ),
    CifarFile(
        "test_batch.bin",
        10000,
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
)
CIFAR_10_PICKLED = (
    CifarFile("data_batch_1", 10000, "c99cafc152244af753f735de768cd75f"),
    CifarFile("data_batch_2", 10000, "d4bba439e000b95fd0a9bffe97cbabec"),
    CifarFile("data_batch_3", 10000, "54ebc095f3ab1f0389bbae665268c751"),
    CifarFile("data_batch_4", 10000, "634d18415352ddfa80567beed471001a"),
    CifarFile("data_batch_5", 10000, "482c414d41f54cd18b22e5b47cb7c3cb"),
    CifarFile("test_batch", 10000, "40351d587109b95175f43aff81a1287e"),
)
CIFAR_100_BINARY = (
    CifarFile(
        "train.bin", 50000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"
    ),
    CifarFile(
        "test.bin", 10000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"
    ),
)
CIFAR_100_PICKLED = (
    CifarFile("train", 50000, "16019d7e3df5f24257cddd939b257f8d"),
    CifarFile("test", 10000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
)


UNSIGNED_BYTES = 0x08


def read_idx(path: Path, shape: tuple[int, ...], sha256: str | None = None) -> Bytes:
    """The array of unsigned bytes in ``path``, checked for magic number, sizes and checksum.

    ``sha256`` is of the decompressed content, so that a file that was compressed anew still counts
    as the published one. Nothing beyond the expected size is ever decompressed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels-idx1-ubyte.gz"
    ...     _ = path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])))
    ...     read_idx(path, (3,)).tolist()
    [7, 8, 9]
    """
    header = idx_header(shape)
    size = len(header) + int(np.prod(shape))
    content = _read(path, size + 1)
    if content[:4] != header[:4]:
        raise InvalidFile(
            f"{path}: not the IDX file it should be: it begins with {content[:4].hex(' ')}, "
            f"and should begin with {header[:4].hex(' ')}. Fetch it again."
        )
    if content[: len(header)] != header:
        found = tuple(
            np.frombuffer(content[4 : len(header)].ljust(len(header) - 4), ">u4").tolist()
        )
        raise InvalidFile(f"{path}: holds an array of shape {found}; it should be {shape}")
    if len(content) != size:
        verdict = "cut short" if len(content) < size else "too long"
        raise InvalidFile(
            f"{path}: {verdict}: {len(content)} bytes where {size} are expected. Fetch it again."
        )
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise InvalidFile(
            f"{path}: damaged, or another data set under this name: the SHA-256 of its content is "
            "not that of the published file. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def idx_header(shape: tuple[int, ...]) -> bytes:
    """How an IDX file of unsigned bytes of this shape begins.

    >>> idx_header((3,)).hex(" ")
    '00 00 08 01 00 00 00 03'
    """
    return bytes([0, 0, UNSIGNED_BYTES, len(shape)]) + np.array(shape, ">u4").tobytes()


def _read(path: Path, limit: int) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read(limit)
        with path.open("rb") as file:
            return file.read(limit)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidFile(f"{path}: cut short or damaged ({error}). Fetch it again.") from error
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror or error})") from error
