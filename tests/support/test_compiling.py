"""Ctrl-C while kernels are compiled or loaded: it waits, and is not lost."""

import os
import signal

import pytest
from numba.core.compiler_lock import global_compiler_lock

from sojourn._support import compiling


@pytest.mark.slow
def test_an_interruption_waits_for_the_compiler() -> None:
    assert compiling.Deferring
    reached = False
    with pytest.raises(KeyboardInterrupt), global_compiler_lock:
        with global_compiler_lock:
            os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
