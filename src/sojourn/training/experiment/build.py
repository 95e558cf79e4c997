"""The learning problem of one seed: the same data, partition, batches and first weights for all.

Final runs are judged on its test set, pilots on samples that clients give up.
"""

import inspect
import math
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch

from sojourn._support.checks import check_seed
from sojourn._support.extensions import load_extension
from sojourn.errors import InvalidInput
from sojourn.training.data.partition import Partition, make_partition
from sojourn.training.data.sets import CropAndFlip, Dataset, load_dataset
from sojourn.training.experiment.calibrate import Calibration, calibrate
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.models import build_model
from sojourn.training.problem.generators import forked_generators
from sojourn.training.problem.problem import Problem
from sojourn.training.problem.samples import TensorSamples
from sojourn.training.replay.checkpoint import digest
from sojourn.types import FloatArray

_PARTITION, _WEIGHTS = 0, 1
AUGMENTED = ("cifar-10", "cifar-100")
SHIFT = 4
"""Pixels of a whole image."""
VALIDATION = 0.25
"""The fraction of the training samples on which pilots are judged."""
MOST_HELD_OUT = 2000
"""Samples: beyond that an evaluation costs more than it tells."""
_VALIDATION_SEED = 0x56414C

dataset = lru_cache(maxsize=1)(load_dataset)
"""`load_dataset`, keeping the last data set for the next seed."""


MOST_KEPT_BYTES = 64_000_000
"""Of samples in the problems that a thread keeps: the seeds of a tuning take turns."""


class _Recent(threading.local):
    """The problems that this thread built last: the strategies of one seed share theirs.

    ``held`` are the same for pilots, once one has asked.
    """

    def __init__(self) -> None:
        self.problems: dict[_Key, Problem] = {}
        self.held: dict[_Key, Problem] = {}

    def make_room(self) -> None:
        """Forget the oldest, and any that is too large to be there beside another one."""
        while sum(map(sample_bytes, self.problems.values())) > MOST_KEPT_BYTES:
            oldest = next(iter(self.problems))
            del self.problems[oldest]
            self.held.pop(oldest, None)


_Key = tuple[object, ...]
_recent = _Recent()
_digests_of: dict[_Key, tuple[str, str, str]] = {}
"""What a user's function returned for a number of clients and a seed before, in this process."""


def sample_bytes(problem: Problem) -> float:
    """Memory of a problem's samples; infinite where only its datasets know."""
    if not isinstance(problem.samples, TensorSamples):
        return math.inf
    held = problem.samples, problem.test_samples
    tensors = [t for one in held if isinstance(one, TensorSamples) for t in (one.x, one.y)]
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def build_problem(experiment: Experiment, seed: int) -> Problem:
    """What every strategy of an experiment learns under ``seed``.

    The partition and the first weights are functions of the seed alone, from streams of their own.
    """
    return _recent_problem(_key(experiment, seed), experiment, seed)


def _recent_problem(key: _Key, experiment: Experiment, seed: int) -> Problem:
    if key not in _recent.problems:
        _recent.make_room()
        _recent.problems[key] = _built(experiment, seed)
    return _recent.problems[key]


def _key(experiment: Experiment, seed: int) -> _Key:
    """What a problem depends on."""
    check_seed(seed)
    own = None
    if experiment.problem is not None:  # another object once its file says something else
        own = load_extension(experiment.problem, "problem", experiment.folder)
    return (
        experiment.data,
        experiment.data_dir,
        experiment.partition,
        # A problem of the user's own is told how many clients there are, not how fast.
        experiment.fleet.size if own is not None else tuple(_service_rates(experiment).tolist()),
        experiment.model,
        experiment.batch_size,
        seed,
        experiment.problem,
        bool(experiment.channels_last),
        experiment.device,
        experiment.precision,
        None if own is None else (experiment.folder, own),
        tuple(experiment.extensions.codes().items()),
    )


def validation_problem(experiment: Experiment, seed: int) -> Problem:
    """The problem of a seed with part of its training samples in place of the test set.

    What is chosen by it, such as a learning rate, is chosen without a look at the test set.
    """
    key = _key(experiment, seed)
    problem = _recent_problem(key, experiment, seed)
    if key not in _recent.held:
        _recent.held[key] = held_out(problem, VALIDATION)
    return _recent.held[key]


def held_out(problem: Problem, fraction: float) -> Problem:
    """The same problem judged on samples that its clients give up, instead of the test set.

    Every client gives up ``fraction`` of its samples and has at least one left.
    """
    counts = held_out_counts(problem.train_sizes, fraction)
    return problem.held_out(counts, _VALIDATION_SEED)


def held_out_counts(sizes: Sequence[int], fraction: float) -> list[int]:
    """How many of its samples each client gives up to judge by.

    Where all of these would be rounded to zero, every client with two samples gives up one.

    >>> held_out_counts([100, 10, 1], 0.25), held_out_counts([2, 1, 2], 0.25)
    ([25, 2, 0], [1, 0, 1])
    """
    share = min(fraction, MOST_HELD_OUT / sum(sizes))
    numbers = [min(size - 1, round(share * size)) for size in sizes]
    if not any(numbers):
        numbers = [min(size - 1, 1) for size in sizes]
    if not any(numbers):
        raise InvalidInput(
            "what is chosen is chosen on training samples that clients give up, and no client has "
            "two. Give clients more samples, or train at one learning rate, without a choice."
        )
    return numbers


def _built(experiment: Experiment, seed: int) -> Problem:
    if experiment.problem is not None:
        return _users_problem(experiment, experiment.problem, seed)
    data = dataset(experiment.data, experiment.data_dir)
    images, labels = data.train
    held = [torch.from_numpy(indices) for indices in partition_of(experiment, data, seed).clients]
    generator = torch.Generator().manual_seed(_stream(seed, _WEIGHTS))
    model = build_model(
        experiment.model,
        shape=data.shape,
        classes=data.classes,
        generator=generator,
        averaged=data.averaged,
    )
    return Problem(
        model,
        [(images[indices], labels[indices]) for indices in held],
        data.test,
        batch_size=experiment.batch_size,
        augment=_augmentation(data),
        channels_last=bool(experiment.channels_last),
        device=experiment.device,
        precision=experiment.precision or "float32",
    )


def _augmentation(data: Dataset) -> CropAndFlip | None:
    """Shifts by an eighth of the image and mirrored ones for CIFAR, where the paper augments; else none."""
    if data.name not in AUGMENTED:
        return None
    return CropAndFlip(data.black, padding=max(1, SHIFT // data.averaged))


def client_weights_of(experiment: Experiment, problem: Problem) -> FloatArray | list[int] | None:
    """How much clients count: as their samples or the fleet say; ``None`` where all do the same."""
    fleet = experiment.fleet
    if fleet.weight is not None:
        return fleet.expand(fleet.relative_weights)
    return problem.train_sizes if experiment.client_weights == "size" else None


def calibration_of(
    experiment: Experiment,
    problem: Problem,
    *,
    learning_rate: float,
    seed: int,
    progress: Callable[[str], None] = lambda step: None,
) -> Calibration:
    """The constants of a problem, its clients weighed as the experiment says; see `calibrate`."""
    return calibrate(
        problem,
        learning_rate=learning_rate,
        seed=seed,
        client_weights=client_weights_of(experiment, problem),
        weighted_fleet=experiment.fleet.weight is not None,
        progress=progress,
    )


def partition_of(experiment: Experiment, data: Dataset, seed: int) -> Partition:
    """Who holds what under ``seed``."""
    generator = np.random.default_rng(_stream(seed, _PARTITION))
    return make_partition(
        experiment.partition,
        data.train_labels,
        experiment.fleet.size,
        generator,
        service_rates=_service_rates(experiment),
    )


def _service_rates(experiment: Experiment) -> FloatArray:
    """Of every client, which the partition may go by."""
    return experiment.fleet.expand(experiment.fleet.service_rates)


def partition_notes(experiment: Experiment) -> tuple[str, ...]:
    """What is worth saying about the partitions of the final seeds."""
    if experiment.problem is not None:
        return ()
    data = dataset(experiment.data, experiment.data_dir)
    notes: dict[str, list[int]] = {}
    for seed in experiment.seeds:
        for note in partition_of(experiment, data, seed).notes:
            notes.setdefault(note, []).append(seed)
    everyone = list(experiment.seeds)
    return tuple(
        note if seeds == everyone else f"seed {', '.join(map(str, seeds))}: {note}"
        for note, seeds in notes.items()
    )


def _stream(seed: int, purpose: int) -> int:
    """A seed for one purpose, unrelated to those for batches and schedules."""
    sequence = np.random.SeedSequence(seed, spawn_key=(0x50524F42, purpose))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def _users_problem(experiment: Experiment, text: str, seed: int) -> Problem:
    """What ``package.module:function`` returns for ``(clients, seed)``."""
    clients = experiment.fleet.size
    function = load_extension(text, "problem", experiment.folder)
    if not callable(function):
        raise InvalidInput(f"problem '{text}': it must be a function of (clients, seed)")
    try:
        inspect.signature(function).bind(clients, seed)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"problem '{text}': it must be a function of two arguments, the number of clients and a "
            f"seed ({error})"
        ) from error
    problem = _seeded(function, clients, seed)
    if not isinstance(problem, Problem):
        raise InvalidInput(
            f"problem '{text}': the function must return a sojourn.training.Problem; it returned a "
            f"{type(problem).__name__}"
        )
    if problem.clients != clients:
        raise InvalidInput(
            f"problem '{text}': it has data for {problem.clients} clients; the fleet has {clients}"
        )
    called = (function, clients, seed)
    if called not in _digests_of:
        again = _seeded(function, clients, seed)
        assert isinstance(again, Problem)
        _digests_of[called] = _digests(again)
    for what, one, other in zip(_PARTS, _digests(problem), _digests_of[called], strict=True):
        if one != other:
            raise InvalidInput(
                f"problem '{text}': called twice with seed {seed} it gives different {what}, so "
                "strategies could not be compared. PyTorch's, NumPy's and Python's own generators "
                "are seeded before the call: let others, such as numpy.random.default_rng(seed) or "
                "torch.Generator().manual_seed(seed), start from the seed too."
            )
    asked = experiment.channels_last, experiment.device, experiment.precision
    if not any(asked):
        return problem
    return problem.variant(
        channels_last=experiment.channels_last,
        device=experiment.device,
        precision=experiment.precision,
    )


_PARTS = ("first weights", "training samples", "test samples")


def _digests(problem: Problem) -> tuple[str, str, str]:
    weights, samples, test = problem.initial_weights(), problem.samples, problem.test_samples
    held = [
        [entries.x, entries.y] if isinstance(entries, TensorSamples) else entries.fingerprint()
        for entries in (samples, test)
    ]
    return digest(weights), digest(*held[0]), digest(*held[1])


def _seeded(function: Callable[[int, int], object], clients: int, seed: int) -> object:
    """What the user's function returns, all generators that it may use without asking seeded.

    They are put back afterwards: what is drawn elsewhere does not depend on it, nor it on that.
    """
    with forked_generators(_stream(seed, _WEIGHTS)):
        return function(clients, seed)
