"""Reading files that may be anything, and writing so that a reader never meets half of one."""

import fcntl
import os
import re
import secrets
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from sojourn.errors import InvalidFile, InvalidInput, SojournError

MOST_TEXT = 1_000_000_000
"""Bytes of the longest text file that is read."""
LEAST_READ = 1 << 16
"""Bytes that are asked for at once, where a file has fewer, or does not say how many."""

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}(\.[^.]+)?")
"""What `replacing` calls its temporary files: the name of the target, a random part, the suffix again."""
DEEPEST = 4
"""Folders below a run's in which it writes: a reproduction's cells are whole runs."""
DIRECTIONS = "\u2028-\u202e\u2066-\u2069"
"""Characters that turn round what follows, so that a name looks like another, or end its line."""
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{DIRECTIONS}]")
"""And halves of characters, which JSON can hold and no file in UTF-8."""

SURROGATES = "backslashreplace"
"""How pages are encoded: names of files can be bytes that are no text, and are then shown escaped."""


def printable(text: str) -> str:
    r"""``text`` with its control characters escaped, all but line ends and tabs.

    >>> print(printable("name\x1b[2J\ud800"))
    name\x1b[2J\ud800
    >>> print(printable("photo\u202egnp.exe"))
    photo\u202egnp.exe
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def file_name(text: str) -> str:
    """``text`` with everything that may trouble a file system replaced by hyphens.

    >>> file_name("p*_H, m = 30")
    'p-_H-m-30'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "strategy"


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or something like one; a name that cannot be one is none.

    >>> is_file("x" * 5000)
    False
    """
    try:
        return not stat.S_ISDIR(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything of that name; a name that cannot be one is none.

    >>> exists("."), exists("x" * 5000)
    (True, False)
    """
    try:
        Path(path).stat()
    except (OSError, ValueError):
        return False
    return True


def nearest_existing(path: Path) -> Path:
    """The place itself, or the nearest one above it that is there.

    >>> nearest_existing(Path("/no-such-folder/runs"))
    PosixPath('/')
    """
    place = path.absolute()
    while not exists(place) and place != place.parent:
        place = place.parent
    return place


def read_text(
    path: str | os.PathLike[str], *, encoding: str = "utf-8-sig", errors: str = "strict"
) -> str:
    """The text of a file; ``InvalidFile`` if there is none, or none that ends."""
    try:
        return read_bytes(path).decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path}: not a text file in UTF-8") from error


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """What is in a file; ``InvalidFile`` if there is none, or none that ends.

    Pipes and devices are refused: they may never end, or keep the reader waiting for ever.
    """
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_TEXT:
                raise InvalidFile(
                    f"{path}: too large: {size} bytes, where at most {MOST_TEXT} are read"
                )
            # Never more than there is: memory for what is asked is taken at once.
            parts, left = list[bytes](), MOST_TEXT
            while left and (part := file.read(min(left, max(size + 1, LEAST_READ)))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
    except OSError as error:
        raise InvalidFile(f"{_short(path)}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        if isinstance(error, SojournError):
            raise
        raise InvalidFile(f"{_short(path)!r}: cannot be read ({error})") from error


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """A plain file, open for reading; ``InvalidFile`` if it is a pipe or a device, which may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InvalidFile(f"{_short(path)}: cannot be read (it is not a plain file)")
    return os.fdopen(handle, "rb")


def _short(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if len(text) <= 200 else f"{text[:100]}... ({len(text)} characters)"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block succeeds.

    If the block raises (Ctrl-C included) the temporary file is removed and ``path`` is as before.
    A place that cannot be written to raises ``InvalidFile``, and so does what is there and no file,
    such as a device, which would be gone; what a link points at is replaced, not the link.

    >>> import tempfile
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


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file that takes the place of what is there in one step (`replacing`)."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def alone_in(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Within, no other process that asks for it writes into ``folder``, which must exist.

    The lock is on the folder itself and leaves nothing behind; it ends with the process, however
    that ends. What a killed process left half written (`replacing`) is removed: nobody else writes
    it now.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name, alone_in(name), alone_in(name):
    ...     pass  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sojourn.errors.InvalidInput: '...': another command is writing to this folder. Wait for it, or give another one
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"'{os.fspath(folder)}': another command is writing to this folder. Wait for it, or give "
                "another one"
            ) from None
        except OSError:  # a file system without locks: others may be writing
            pass
        else:
            _remove_half_written(Path(folder))
        yield
    finally:
        os.close(handle)


def _remove_half_written(folder: Path, depth: int = DEEPEST) -> None:
    """Remove temporary files of `replacing` in and below ``folder``, unless another process writes.

    Links are not followed, and what cannot be read or removed stays.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth and not entry.name.startswith("."):
                    _remove_if_alone(Path(entry.path), depth - 1)
                continue
            match = _TEMPORARY.fullmatch(entry.name)
            ours = match is not None and Path(match[1]).suffix == (match[2] or "")
            if ours and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)


def _remove_if_alone(folder: Path, depth: int) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_half_written(folder, depth)
    except BlockingIOError:  # another command writes there
        pass
    finally:
        os.close(handle)


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
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{target.suffix}")
    # Not mkstemp, whose files only their owner can read: a new file has the mode of the umask.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
