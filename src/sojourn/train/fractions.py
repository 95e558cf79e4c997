"""How far the runs of other processes are, told through a small file."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

SECONDS_BETWEEN_LOOKS = 0.5


@contextmanager
def following(count: int, advance: Callable[[int, float], None]) -> Iterator[Path]:
    """A file in which ``count`` runs note their progress; ``advance(place, fraction)`` hears of it.

    It is called from a thread of its own, for the length of the block.
    """
    with tempfile.TemporaryDirectory(prefix="sojourn-") as folder:
        path = Path(folder) / "fractions"
        np.zeros(count).tofile(path)
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(SECONDS_BETWEEN_LOOKS):
                for place, fraction in enumerate(np.fromfile(path).tolist()):
                    advance(place, fraction)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            ended.set()
            thread.join()


def note(path: Path, place: int) -> Callable[[float], None]:
    """What a run calls with the fraction of it that is done."""
    fractions = np.memmap(path, dtype=np.float64, mode="r+")

    def write(fraction: float) -> None:
        fractions[place] = fraction

    return write
