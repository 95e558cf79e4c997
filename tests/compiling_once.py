"""Of all processes of a test run one compiles at a time: the others load what it has kept.

Where nothing is compiled yet, as in a fresh clone, workers would otherwise compile the same kernels side by side.
"""

import os
import tempfile
import threading
from pathlib import Path

from numba.core import event

try:
    import fcntl
except ImportError:  # a system without it compiles side by side
    fcntl = None  # type: ignore[assignment]


class OneAtATime(event.Listener):
    """Holds a lock on a file while this process looks for, compiles and keeps a kernel.

    The lock is of the kind that forks do not inherit and that ends with its process.
    """

    def __init__(self) -> None:
        path = Path(tempfile.gettempdir()) / f"sojourn-tests-{os.getuid()}.lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._thread = threading.RLock()
        self._depth = 0

    def on_start(self, event: object) -> None:
        self._thread.acquire()
        self._depth += 1
        if self._depth == 1:
            fcntl.lockf(self._file, fcntl.LOCK_EX)

    def on_end(self, event: object) -> None:
        self._depth -= 1
        if not self._depth:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._thread.release()


def compile_one_at_a_time() -> None:
    """Let this process take turns with the others."""
    if fcntl is not None:
        event.register("numba:compiler_lock", OneAtATime())  # type: ignore[no-untyped-call]
