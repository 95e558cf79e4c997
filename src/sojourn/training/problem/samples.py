"""The samples of every client: pairs of tensors in memory, or map-style datasets, made lazily or not."""

import inspect
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from sojourn.errors import InvalidInput
from sojourn.training.problem.generators import forked_generators

Pair: TypeAlias = tuple[Any, Any]
"""A batch: inputs and labels, usually tensors, or whatever ``collate`` makes of samples."""

Collate: TypeAlias = Callable[[list[Any]], Pair]
"""From a list of samples to a batch."""


class MapDataset(Protocol):
    """A map-style dataset: ``torch.utils.data.Dataset``, a subset, a Hugging Face dataset, a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Made: TypeAlias = tuple[Tensor, Tensor] | MapDataset
"""A pair of tensors, or a dataset."""

Entry: TypeAlias = Made | Callable[[], Made]
"""What one client holds: a pair of tensors, a dataset, or a function that makes one of them."""

LAZY_CLIENTS = 64
"""Datasets made by functions that are in memory at a time: those used last."""

KEPT_BYTES = 64_000_000
"""Memory for the batches of a test set of datasets, which are the same at every evaluation."""


class TensorSamples:
    """Pairs of tensors, all clients in two tensors: sample k of a client is row ``offset + k``.

    ``lent`` says that parts may be given without a copy: nobody who is given them changes them.
    """

    def __init__(self, sets: Sequence[tuple[Tensor, Tensor]], what: Callable[[int], str]) -> None:
        for client, samples in enumerate(sets):
            _check_pair(what(client), samples)
        self.sizes = [len(y) for _, y in sets]
        self.x = torch.cat([x for x, _ in sets])
        self.y = torch.cat([y for _, y in sets])
        self.lent = True

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def sets(self) -> list[tuple[Tensor, Tensor]]:
        """The pair of each client."""
        return list(
            zip(torch.split(self.x, self.sizes), torch.split(self.y, self.sizes), strict=True)
        )

    def rows(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Some rows of all."""
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)

    def first(self, client: int, count: int) -> tuple[Tensor, Tensor]:
        """A copy of ``count`` samples, those of the client first."""
        begin = sum(self.sizes[:client])
        return self.x[begin : begin + count].clone(), self.y[begin : begin + count].clone()

    def split(self, counts: Sequence[int], seed: int) -> tuple["TensorSamples", "TensorSamples"]:
        """What clients have left after each gives up ``counts[i]`` samples, and what they gave up."""
        left: list[tuple[Tensor, Tensor]] = []
        away: list[tuple[Tensor, Tensor]] = []
        for (x, y), order in zip(self.sets, _orders(self.sizes, seed), strict=True):
            count = counts[len(left)]
            stays = order[count:].sort().values
            left.append((x[stays], y[stays]))
            away.append((x[order[:count]], y[order[:count]]))
        whole = torch.cat([x for x, _ in away]), torch.cat([y for _, y in away])
        return TensorSamples(left, _held_out), TensorSamples([whole], _held_out)

    def fingerprint(self) -> list[object]:
        """All labels, but one input per client."""
        return [part for x, y in self.sets for part in (x[0], y)]


class DatasetSamples:
    """Map-style datasets, of which samples are fetched one by one and collated.

    Fetching, with the transforms of the dataset, runs under `forked_generators`, so that a batch
    depends on its seed alone. ``indices`` restrict a client to some of its samples.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        collate: Collate | None,
        what: Callable[[int], str],
        indices: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if collate is not None and not callable(collate):
            raise InvalidInput(
                "collate must be a function from a list of samples to a pair (x, y); it is a "
                f"{type(collate).__name__}"
            )
        self._entries, self._collate, self._what = list(entries), collate, what
        self._indices = indices
        self._made: OrderedDict[int, MapDataset] = OrderedDict()
        self._kept: dict[int, _Kept] = {}
        self._known: dict[int, int] = {}
        for client, entry in enumerate(self._entries):
            if not _is_lazy(entry):
                self._known[client] = self._checked_length(client, entry)

    def __len__(self) -> int:
        return len(self._entries)

    def dataset(self, client: int) -> MapDataset:
        """The dataset of a client, made now if it is made by a function."""
        entry: Any = self._entries[client]
        if not _is_lazy(entry):
            dataset: MapDataset = entry
            return dataset
        if client not in self._made:
            if len(self._made) >= LAZY_CLIENTS:
                self._made.popitem(last=False)
            with forked_generators(client):  # Whatever batch is the first to ask for it.
                made = _made(self._what(client), entry)
            self._known.setdefault(client, self._checked_length(client, made))
            self._made[client] = made
        self._made.move_to_end(client)
        return self._made[client]

    def size(self, client: int) -> int:
        """The number of samples of a client, whose dataset is made if that is not known yet."""
        if self._indices is not None:
            return len(self._indices[client])
        if client not in self._known:
            self.dataset(client)
        return self._known[client]

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each client: makes every dataset once."""
        return [self.size(client) for client in range(len(self))]

    def batch(self, client: int, places: Sequence[int], seed: int) -> Pair:
        """The samples at ``places`` of a client, collated; random transforms start from ``seed``."""
        chosen = places if self._indices is None else [self._indices[client][k] for k in places]
        dataset = self.dataset(client)
        with forked_generators(seed):
            samples: list[object] = []
            try:
                samples.extend(dataset[k] for k in chosen)
                made: Any = (self._collate or default_collate)(samples)
            except Exception as error:  # of the user's own code, which says when it was raised
                fetched = len(samples)
                which = f" {chosen[fetched]}" if fetched < len(chosen) else f"s {list(chosen)}"
                error.add_note(f"in a batch of {self._what(client)}: sample{which}")
                raise
        return _checked_batch(self._what(client), self._collate, made)

    def test_batch(self, begin: int, end: int) -> Pair:
        """The samples from ``begin`` to ``end`` of a test set, kept for the next evaluation.

        Only as many as `KEPT_BYTES` hold are kept, and none that a model or a loss has changed in
        place: those are fetched again.
        """
        kept = self._kept.get(begin)
        if kept is not None and kept.unchanged():
            return kept.pair
        pair = self.batch(0, range(begin, end), seed=begin)
        found = _Kept(pair)
        others = sum(other.size for place, other in self._kept.items() if place != begin)
        if others + found.size <= KEPT_BYTES:
            self._kept[begin] = found
        return pair

    def first(self, client: int, count: int) -> Pair:
        """``count`` samples of a client, some of them again if it has fewer."""
        size = self.size(client)
        return self.batch(client, [k % size for k in range(count)], seed=0)

    def split(self, counts: Sequence[int], seed: int) -> tuple["DatasetSamples", "DatasetSamples"]:
        """What clients have left after each gives up ``counts[i]`` samples, and what they gave up."""
        left: list[list[int]] = []
        away: list[list[int]] = []
        for count, order in zip(counts, _orders(self.sizes, seed), strict=True):
            before = self._indices
            own = range(len(order)) if before is None else before[len(left)]
            left.append([own[k] for k in sorted(order[count:].tolist())])
            away.append([own[k] for k in order[:count].tolist()])
        parts = (self._entries, self._collate, self._what)
        given = DatasetSamples(*parts, indices=away)
        return DatasetSamples(*parts, indices=left), _joined(given, self._collate)

    def fingerprint(self) -> list[object]:
        """Size and first sample of at most eight clients, spread over all."""
        chosen = np.unique(np.linspace(0, len(self) - 1, min(8, len(self))).astype(int)).tolist()
        found: list[object] = [len(self)]
        for client in chosen:
            found += [self.size(client), *_tensors_in(self.first(client, 1))]
        return found

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": OrderedDict(), "_kept": {}}

    def _checked_length(self, client: int, dataset: object) -> int:
        what = self._what(client)
        try:
            length = len(dataset)  # type: ignore[arg-type]  # a TypeError says what it is not
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InvalidInput(
                f"{what} has no length: batches are drawn by index. Give a map-style dataset, with "
                "__len__ and __getitem__; list(...) makes one of what can be iterated."
            ) from error
        if not hasattr(dataset, "__getitem__") or isinstance(dataset, IterableDataset):
            raise InvalidInput(
                f"{what} is a {type(dataset).__name__}, which has no samples to index: give a pair "
                "(x, y) of tensors, or a map-style dataset"
            )
        if not length:
            raise InvalidInput(f"{what} is empty: leave out clients without data")
        return length


class _Kept:
    """A batch, its size in memory (infinite if that is not known) and whether it was changed since."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        parts = _tensors_in(pair)
        self._tensors = [part for part in parts if isinstance(part, Tensor)]
        self._versions = [tensor._version for tensor in self._tensors]
        others = [part for part in parts if not isinstance(part, Tensor)]
        known = all(part is None or isinstance(part, int | float | str) for part in others)
        self.size = float(sum(tensor.nbytes for tensor in self._tensors)) if known else np.inf

    def unchanged(self) -> bool:
        return self._versions == [tensor._version for tensor in self._tensors]


class _Joined:
    """The samples of several clients in one dataset."""

    def __init__(self, samples: DatasetSamples) -> None:
        self._samples = samples
        self._ends = np.cumsum(samples.sizes).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, place: int) -> Any:
        client = bisect_right(self._ends, place)
        begin = self._ends[client - 1] if client else 0
        indices = self._samples._indices
        assert indices is not None
        sample = indices[client][place - begin]
        try:
            return self._samples.dataset(client)[sample]
        except Exception as error:
            error.add_note(f"sample {sample} of {self._samples._what(client)}")
            raise


def _joined(samples: DatasetSamples, collate: Collate | None) -> DatasetSamples:
    return DatasetSamples([_Joined(samples)], collate, _held_out)


def _held_out(_: int) -> str:
    return "the held-out samples"


Samples: TypeAlias = TensorSamples | DatasetSamples


def as_samples(
    entries: Sequence[Entry] | Samples, collate: Collate | None, what: Callable[[int], str]
) -> Samples:
    """Pairs of tensors as they are held in memory, or datasets; ``what`` names an entry in errors."""
    if isinstance(entries, TensorSamples | DatasetSamples):
        return entries
    pairs: list[Any] = list(entries)
    datasets = [is_dataset(entry) for entry in pairs]
    if not any(datasets):
        if collate is not None:
            raise InvalidInput(
                "collate makes batches of the samples of a dataset, and here clients hold pairs of "
                "tensors. Leave it out, or give datasets."
            )
        return TensorSamples(pairs, what)
    if not all(datasets):
        raise InvalidInput(
            f"{what(datasets.index(False))} is a pair of tensors and {what(datasets.index(True))} is "
            "not: give all clients pairs of tensors, or all of them datasets"
        )
    return DatasetSamples(pairs, collate, what)


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors, and those in tuples, lists and dictionaries, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: to_device(part, device) for key, part in value.items()}
    if isinstance(value, tuple | list):
        moved = [to_device(part, device) for part in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def shape_of(value: object) -> str:
    """A value of a batch in words, for errors."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return type(value).__name__


def _orders(sizes: Sequence[int], seed: int) -> Iterator[Tensor]:
    """A random order of the samples of every client."""
    generator = torch.Generator().manual_seed(seed)
    for size in sizes:
        yield torch.randperm(size, generator=generator, device="cpu")


def _tensors_in(value: object) -> list[object]:
    if isinstance(value, dict):
        return [part for key in sorted(value) for part in _tensors_in(value[key])]
    if isinstance(value, tuple | list):
        return [part for entry in value for part in _tensors_in(entry)]
    return [value]


def _is_lazy(entry: object) -> bool:
    return callable(entry) and not hasattr(entry, "__getitem__")


def is_dataset(entry: object) -> bool:
    """Whether this is no pair of tensors: a list of samples is a dataset, a list of two tensors a pair."""
    if isinstance(entry, list):
        parts = [isinstance(part, tuple | list | Mapping) for part in entry]
        return len(entry) != 2 or all(parts)
    return not isinstance(entry, tuple | Tensor)


def _made(what: str, make: Callable[[], object]) -> MapDataset:
    """What a function made for a client, as a dataset."""
    try:
        made: Any = make()
    except Exception as error:
        if isinstance(error, TypeError) and (misfit := _misfit(make)) is not None:
            raise InvalidInput(
                f"{what} is to be made by a function, which is called without arguments ({misfit}). "
                "Give functools.partial(function, ...), or a dataset."
            ) from error
        error.add_note(f"in the function that makes {what}")
        raise
    if isinstance(made, tuple):
        _check_pair(what, made)
        return TensorDataset(*made)
    dataset: MapDataset = made
    return dataset


def _misfit(make: Callable[[], object]) -> TypeError | None:
    """Why a function cannot be called without arguments, if that is so."""
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        return error
    except ValueError:  # written in C, without a signature
        pass
    return None


def _check_pair(what: str, samples: Entry) -> None:
    try:
        x, y = samples  # type: ignore[misc]  # an Entry that is no pair says so
        lengths = len(x), len(y)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what} must be a pair (x, y) of tensors") from error
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise InvalidInput(f"{what} must be a pair (x, y) of tensors")
    if lengths[0] != lengths[1]:
        raise InvalidInput(f"{what} has {lengths[0]} inputs but {lengths[1]} labels")
    if not lengths[0]:
        raise InvalidInput(f"{what} is empty: leave out clients without data")


def _checked_batch(what: str, collate: Collate | None, made: object) -> Pair:
    if isinstance(made, tuple | list) and len(made) == 2:
        return made[0], made[1]
    who = "collate" if collate is not None else "the default collate of torch"
    found = "nothing" if made is None else f"a {type(made).__name__}"
    raise InvalidInput(
        f"{what}: {who} returned {found} for a list of samples; it must return a pair (x, y), of "
        "which the loss takes model(x) and y. Give a collate that does."
    )
