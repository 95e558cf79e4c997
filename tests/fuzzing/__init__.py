"""Bad inputs for every command and file, drawn from a seed, and a process to try them in."""

from tests.fuzzing.inputs import cases
from tests.fuzzing.tryer import Tryer, prepare

__all__ = ["Tryer", "cases", "prepare"]
