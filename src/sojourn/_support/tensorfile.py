"""Named arrays in a safetensors file, which others load as a ``state_dict``."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn._support.files import replacing
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
