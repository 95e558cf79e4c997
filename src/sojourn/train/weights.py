"""Final weights that a run kept, for a model to load."""

import os

import torch
from torch import Tensor

from sojourn.tensorfile import read_tensors


def load_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The ``state_dict`` in a file: ``model.load_state_dict(load_weights(path))``.

    The file is in the safetensors format: ``safetensors.torch.load_file`` reads it as well.
    """
    return {name: torch.from_numpy(array) for name, array in read_tensors(path).items()}
