"""Named arrays in one file, in the safetensors format: what others load as a ``state_dict``.

A file is eight bytes that give the length of a JSON text, the text, and the numbers; nothing in it
is executed when it is read. ``safetensors.torch.load_file(path)`` reads it, and so does
`sojourn.train.load_weights`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidFile
from sojourn.files import replacing

_KINDS = {
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ALIGNMENT = 8


def write_tensors(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays."""
    header: dict[str, Any] = {}
    parts, offset = [], 0
    for name, array in arrays.items():
        kind = np.dtype(array.dtype).newbyteorder("<")
        if kind not in _NAMES:
            raise InvalidFile(f"{path}: '{name}' is {array.dtype}, which the file cannot hold")
        data = np.ascontiguousarray(array, dtype=kind).tobytes()
        header[name] = {
            "dtype": _NAMES[kind],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        parts.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        file.writelines(parts)


def read_tensors(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The named arrays in a file."""
    try:
        data = Path(path).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        found = {}
        for name, about in header.items():
            if name == "__metadata__":
                continue
            begin, end = about["data_offsets"]
            flat = np.frombuffer(body[begin:end], dtype=_KINDS[about["dtype"]])
            found[name] = flat.reshape(about["shape"]).copy()
        return found
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidFile(f"{path}: not a whole safetensors file ({error})") from error
