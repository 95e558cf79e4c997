"""How many threads PyTorch uses for an experiment."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sojourn.train.experiment import Experiment
from sojourn.train.models import SMALL_MODELS, parse_model


def threads_for(experiment: Experiment, available: int | None) -> int | None:
    """As the experiment says; else one for models too small to gain from more; else ``available``."""
    if experiment.threads is not None:
        return experiment.threads
    small = experiment.problem is None and parse_model(experiment.model)[0] in SMALL_MODELS
    return 1 if small else available


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Within the block PyTorch uses ``count`` threads; ``None`` leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
