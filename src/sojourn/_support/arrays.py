"""Named arrays in files: safetensors, which others load as a ``state_dict``, and NumPy archives.

Both may be anybody's: nothing in them runs, or takes more than they are long.
"""

import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn._support.files import opened, replacing
from sojourn.errors import InvalidFile


def write_tensors(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write named arrays."""
    from safetensors.numpy import save

    data = save({name: np.asarray(values, order="C") for name, values in arrays.items()})
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def read_tensors(path: str | os.PathLike[str]) -> dict[str, NDArray[np.generic]]:
    """The named arrays in a file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(Path(path).read_bytes())
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error
    except (SafetensorError, KeyError) as error:
        raise InvalidFile(f"{path}: not a whole safetensors file ({error})") from error


def read_arrays(
    path: str | os.PathLike[str], names: Iterable[str] | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of ``names``, all by default; what is no such archive raises ``ValueError``.

    Ours are not compressed, and one that is could be a thousand times as long as its file.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".npz") as file:
    ...     np.savez_compressed(file, zeros=np.zeros(10_000))
    ...     read_arrays(file.name)
    Traceback (most recent call last):
    ValueError: it is compressed
    """
    try:
        with opened(path) as file:
            with zipfile.ZipFile(file) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise ValueError("it is compressed")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in (arrays.files if names is None else names)}
    except MemoryError as error:
        raise ValueError("an array in it says that it is larger than memory") from error
    except (zipfile.BadZipFile, NotImplementedError, EOFError, KeyError, OverflowError) as error:
        raise ValueError(str(error) or "it is cut off") from error
