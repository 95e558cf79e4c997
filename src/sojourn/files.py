"""Reading files that may be anything, and writing so that a reader never meets half of one."""

import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sojourn.errors import InvalidFile, SojournError

MOST_TEXT = 1_000_000_000
"""Bytes of the longest text file that is read."""


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or something like one; a name that cannot be one is none.

    >>> is_file("x" * 5000)
    False
    """
    try:
        return not stat.S_ISDIR(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def read_text(path: str | os.PathLike[str], *, encoding: str = "utf-8-sig") -> str:
    """The text of a file; ``InvalidFile`` if there is none, or none that ends.

    Pipes and devices are refused: they may never end, or keep the reader waiting for ever.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidFile(f"{_short(path)}: cannot be read (it is not a plain file)")
            if status.st_size > MOST_TEXT:
                raise InvalidFile(
                    f"{path}: too large: {status.st_size} bytes, where at most {MOST_TEXT} are read"
                )
            return file.read(MOST_TEXT).decode(encoding)
    except OSError as error:
        raise InvalidFile(f"{_short(path)}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path}: not a text file in UTF-8") from error
    except ValueError as error:
        if isinstance(error, SojournError):
            raise
        raise InvalidFile(f"{_short(path)!r}: cannot be read ({error})") from error


def _short(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if len(text) <= 200 else f"{text[:100]}... ({len(text)} characters)"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block succeeds.

    If the block raises (Ctrl-C included) the temporary file is removed and ``path`` is as before.
    A place that cannot be written to raises ``InvalidFile``, and so does what is there and no file,
    such as a device, which would be gone; what a link points at is replaced, not the link.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "plan.toml"
    ...     with replacing(target) as temporary:
    ...         _ = temporary.write_text("concurrency = 30")
    ...     target.read_text()
    'concurrency = 30'
    """
    target = Path(path)
    try:
        if target.is_symlink():
            target = Path(os.path.realpath(target))
        if target.exists() and not target.is_file():  # a device would be gone
            kind = "a folder" if target.is_dir() else "a device or a pipe"
            raise InvalidFile(f"{path}: cannot be written (it is {kind}): give the name of a file")
        with _replacing(target) as temporary:
            yield temporary
    except SojournError:
        raise
    except OSError as error:
        raise InvalidFile(
            f"{_short(path)}: cannot be written ({error.strerror or error})"
        ) from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, Ctrl-C has to wait: what libraries leave half made when they are interrupted complains.

    Only the main thread is ever interrupted.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *interrupt: heard.append(interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            before(*heard[0])


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
