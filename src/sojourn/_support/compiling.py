"""What kernels need before they run: few types of arguments, and Ctrl-C that waits for the compiler.

LLVM's callbacks swallow an interruption, with a traceback; in a process that has imported this
module it comes when the kernel is there. So modules with kernels take ``njit`` from here.
"""

import threading
from contextlib import ExitStack
from typing import TypeVar

import numpy as np
from numba import njit as njit
from numba.core import event

from sojourn._support.files import uninterrupted

Array = TypeVar("Array", bound=np.ndarray)


def read_only(array: Array) -> Array:
    """The same numbers, not to be written: a kernel is compiled for those alone, not for both kinds.

    >>> read_only(np.ones(2)).flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view


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
