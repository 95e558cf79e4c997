"""Ctrl-C waits while a kernel is compiled or loaded: LLVM's callbacks swallow it, with a traceback.

So it is in a process that has imported this module, as those with kernels do.
"""

import threading
from contextlib import ExitStack

from numba.core import event

from sojourn.files import uninterrupted


class Deferring(event.Listener):
    """Holds interruptions back while this thread, the main one, has Numba's lock."""

    def __init__(self) -> None:
        self._depth = 0
        self._held_back = ExitStack()

    def on_start(self, event: object) -> None:
        """The lock is asked for, perhaps again."""
        if threading.current_thread() is threading.main_thread():
            if not self._depth:
                self._held_back.enter_context(uninterrupted())
            self._depth += 1

    def on_end(self, event: object) -> None:
        """It is given back; what was held back is let through with the last."""
        if threading.current_thread() is threading.main_thread() and self._depth:
            self._depth -= 1
            if not self._depth:
                self._held_back.close()


event.register("numba:compiler_lock", Deferring())  # type: ignore[no-untyped-call]
