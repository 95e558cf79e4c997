"""Arrays in the IDX format of MNIST and its successors, compressed or not."""

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidFile

UNSIGNED_BYTES = 0x08


def read_idx(path: Path, shape: tuple[int, ...], sha256: str | None = None) -> NDArray[np.uint8]:
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
