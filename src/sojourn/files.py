"""Writing files so that a reader never meets half of one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sojourn.errors import InvalidFile, SojournError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block succeeds.

    If the block raises (Ctrl-C included) the temporary file is removed and ``path`` is as before.
    A place that cannot be written to raises ``InvalidFile``.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "plan.toml"
    ...     with replacing(target) as temporary:
    ...         _ = temporary.write_text("concurrency = 30")
    ...     target.read_text()
    'concurrency = 30'
    """
    target = Path(path)
    if target.is_dir():
        raise InvalidFile(f"{path}: cannot be written (it is a folder): give the name of a file")
    try:
        with _replacing(target) as temporary:
            yield temporary
    except SojournError:
        raise
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be written ({error.strerror})") from error


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
