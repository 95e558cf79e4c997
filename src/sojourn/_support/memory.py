"""What this machine can hold, asked before anything is allocated or written."""

import gc
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sojourn._support.files import nearest_existing
from sojourn.errors import InvalidInput

BYTES_OF_A_PROCESS = 300_000_000
"""What a process with PyTorch takes before it has any data."""
BYTES_OF_BUFFERS = 72_000_000
"""Two of OpenBLAS's buffers, 33.6 MB each, and a little."""
_HELD: list[bool] = []
"""Not empty once this process has them."""
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
"""Settings of the GNU C library (`mallopt`): blocks from the first size on are not kept when they are freed,
and threads share so many heaps."""
COLLECTED_OFTEN = (100, 2, 2)
"""How often the garbage collector looks at its three generations (`gc.set_threshold`)."""


def available_bytes() -> int:
    """Memory that this process can still have: what is free, or less where it is limited."""
    free = _free_bytes()
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError):
        return free
    return free if limit < 0 else min(free, max(0, limit - _used_bytes()))


def check_memory_for(what: str, needed: float, advice: str) -> None:
    """Raise unless ``needed`` bytes can be had; ``what`` would take them, ``advice`` says what to do.

    >>> check_memory_for("1e15 rounds", 2e16, "Ask for fewer rounds.")
    Traceback (most recent call last):
    sojourn.errors.InvalidInput: 1e15 rounds would take 20,000,000 GB of memory; this machine has ... GB left. Ask for fewer rounds.
    """
    if needed > (left := available_bytes()):
        raise InvalidInput(
            f"{what} would take {_gigabytes(needed)} of memory; this machine has {_gigabytes(left)} "
            f"left. {advice}"
        )


def check_jobs(jobs: int) -> int:
    """``jobs`` again; raises where there are none, or more than this machine can hold.

    >>> check_jobs(10**9)
    Traceback (most recent call last):
    sojourn.errors.InvalidInput: --jobs 1000000000 would take 300,000,000 GB of memory; this machine has ... GB left. Ask for as many as there are cores.
    """
    if jobs < 1:
        raise InvalidInput(f"--jobs must be at least 1; it is {jobs}")
    if jobs > 1:
        needed = min(jobs, 10**12) * BYTES_OF_A_PROCESS
        check_memory_for(f"--jobs {jobs}", needed, "Ask for as many as there are cores.")
    return jobs


def check_disk_for(what: str, needed: float, folder: Path, advice: str) -> None:
    """Raise unless ``needed`` bytes can be written into ``folder``, which need not exist yet."""
    try:
        left = shutil.disk_usage(nearest_existing(folder)).free
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be written ({error.strerror})") from error
    if needed > left:
        raise InvalidInput(
            f"{what} would take {_gigabytes(needed)} of disk; {folder} has {_gigabytes(left)} left. "
            f"{advice}"
        )


def _gigabytes(size: float) -> str:
    gigabytes = size / 1e9
    return f"{gigabytes:,.0f} GB" if 1e3 <= gigabytes < 1e12 else f"{gigabytes:.3g} GB"


def _free_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return physical_bytes()


def physical_bytes() -> int:
    """All the memory of this machine; what is free now says little, since caches give way."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _used_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def holding_little() -> Iterator[None]:
    """Have this process give memory back soon: for one that holds few objects, each of many megabytes.

    The GNU C library, once it has seen large blocks freed, keeps those of every thread for that
    thread: now they go back to the system at once, and threads share one heap. Other C libraries
    have no such settings, and need none. Python's collector looks seldom for objects that refer to
    each other, as the responses of HTTP clients do: now often, and not at what was there before.
    """
    import ctypes  # not above: commands that print a line should start fast

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
    share_one_heap()
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*COLLECTED_OFTEN)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def share_one_heap() -> None:
    """Have all threads share one heap: the GNU C library gives each 64 MB of addresses of its own, used or not."""
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def reserve_for_linear_algebra() -> None:
    """Have NumPy's and SciPy's OpenBLAS take their buffers now; ``MemoryError`` if they cannot.

    Each takes one of 32 MB at its first use and keeps it. Where that cannot be had it tries again for ever.
    """
    if _HELD:
        return
    if available_bytes() < BYTES_OF_BUFFERS:
        raise MemoryError(f"linear algebra needs {BYTES_OF_BUFFERS / 1e6:.0f} MB of memory")
    import numpy as np
    from scipy.linalg.lapack import dpotrf

    if available_bytes() < BYTES_OF_BUFFERS:
        raise MemoryError(f"linear algebra needs {BYTES_OF_BUFFERS / 1e6:.0f} MB of memory")
    np.linalg.cholesky(np.eye(2))
    dpotrf(np.eye(2))
    _HELD.append(True)


def give_back() -> None:
    """Collect garbage, and give all memory that is freed and kept for later back to the system."""
    import ctypes

    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
