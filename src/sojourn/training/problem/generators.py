"""The generators of torch, NumPy and Python that a process shares: forked, so that draws repeat."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, ClassVar

import numpy as np
import torch

_LOCK = threading.RLock()
"""Held while a thread draws from generators that it has seeded."""


class _Shared:
    """Who may draw from the shared generators, and their states, which are put back at the end.

    ``inside`` are the threads within `generators_put_back`, as often as they are; ``owner`` is the
    one of them that has seeded the generators and draws.
    """

    inside: ClassVar[list[int]] = []
    owner: int | None = None
    states: tuple[Any, ...] = ()


@contextmanager
def generators_put_back() -> Iterator[None]:
    """Afterwards the generators are as they were; forks inside need not put them back one by one.

    To save and restore the state of NumPy's costs fifty times as much as to seed it. Meanwhile
    threads that are not inside, such as those of a Dask worker, draw from generators of their own.
    """
    with _LOCK:
        if not _Shared.inside:
            _Shared.states = _states()
            for module, _, by_thread in _DRAWN:
                vars(module).update(by_thread)
        _Shared.inside.append(threading.get_ident())
    try:
        yield
    finally:
        with _LOCK:
            _Shared.inside.remove(threading.get_ident())
            if not _Shared.inside:
                for module, usual, _ in _DRAWN:
                    vars(module).update(usual)
                _put_back(_Shared.states)


@contextmanager
def forked_generators(seed: int) -> Iterator[None]:
    """Inside, the generators of torch (on the CPU), NumPy and Python start from ``seed``.

    What a transform draws depends on ``seed`` alone, also where other threads of the process draw
    from ``random`` and ``numpy.random``. Afterwards the generators are as they were.
    """
    inside = threading.get_ident() in _Shared.inside
    with nullcontext() if inside else generators_put_back(), _LOCK:
        before, _Shared.owner = _Shared.owner, threading.get_ident()
        outer = None if before is None else _states()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002, TID251
        try:
            yield
        finally:
            _Shared.owner = before
            if outer is not None:
                _put_back(outer)


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Inside, torch's own generators start from ``seed``; afterwards they are as they were.

    Modules such as dropout take no generator of their own, and draw from that of their device.
    """
    with _LOCK:
        before = torch.random.get_rng_state()
        on_device = None
        if device is not None and device.type == "cuda":
            on_device = torch.cuda.get_rng_state(device)
            torch.cuda.manual_seed_all(seed)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.random.set_rng_state(before)
            if device is not None and on_device is not None:
                torch.cuda.set_rng_state(on_device, device)


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002


def _put_back(states: tuple[Any, ...]) -> None:
    python, numpy, of_torch = states
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.random.set_rng_state(of_torch)


def _functions(
    module: Any, shared: object, spare: object
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The functions of a module that draw from its shared generator, and what stands in for them."""
    usual = {
        name: function
        for name, function in vars(module).items()
        if getattr(function, "__self__", None) is shared
    }
    return module, usual, {n: _by_thread(f, getattr(spare, n)) for n, f in usual.items()}


def _by_thread(usual: Callable[..., object], other: Callable[..., object]) -> Callable[..., object]:
    """A function that draws from ``other`` in threads that may not draw from the shared generator."""

    @wraps(usual)
    def draw(*arguments: object, **options: object) -> object:
        thread, owner = threading.get_ident(), _Shared.owner
        mine = thread == owner if owner is not None else thread in _Shared.inside
        return (usual if mine else other)(*arguments, **options)

    return draw


_DRAWN = [
    _functions(random, random.random.__self__, random.Random()),  # type: ignore[attr-defined]
    _functions(np.random, np.random.rand.__self__, np.random.RandomState()),  # type: ignore[attr-defined]
]
