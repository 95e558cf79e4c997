"""Writing files: what stands there is replaced whole, or is as it was."""

import fcntl
import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from sojourn._support.files import LEAST_READ, alone_in, read_bytes, replacing
from sojourn.errors import InvalidFile
from tests.commands import Commands


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidFile, match="a device or a pipe"), replacing(tmp_path / "pipe"):
        raise AssertionError("there is nothing to write to")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "plan.toml").symlink_to(tmp_path / "elsewhere" / "real.toml")
    for text in ("one", "two"):
        with replacing(tmp_path / "plan.toml") as temporary:
            temporary.write_text(text)
        assert (tmp_path / "plan.toml").is_symlink()
        assert (tmp_path / "elsewhere" / "real.toml").read_text() == text


def test_reading_a_file_takes_as_much_memory_as_it_holds(tmp_path: Path) -> None:
    sizes = (0, 10, LEAST_READ - 1, LEAST_READ, LEAST_READ + 1, 3 * LEAST_READ)
    for size in sizes:
        content = bytes(range(256)) * (size // 256) + bytes(size % 256)
        (tmp_path / "file").write_bytes(content)
        tracemalloc.start()
        assert read_bytes(tmp_path / "file") == content
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 2 * size + 8 * LEAST_READ


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads a file of /proc")
def test_a_file_that_does_not_say_how_long_it_is_is_read_to_its_end() -> None:
    assert Path("/proc/self/maps").stat().st_size == 0
    assert len(read_bytes("/proc/self/maps").splitlines()) > 100


@pytest.mark.parametrize("option", ["--out", "--clients"])
def test_a_command_does_not_write_over_what_it_reads(
    commands: Commands, tmp_path: Path, option: str
) -> None:
    given = "service_rate,count\n1,2\n2,3\n"
    (tmp_path / "fleet.csv").write_text(given)
    wanted = ("--concurrency", "5", "--objective", "throughput", option, "./fleet.csv")
    done = commands.run(tmp_path, "plan", "fleet.csv", *wanted)
    assert done.code == 2
    assert "is read by this command" in done.error
    assert (tmp_path / "fleet.csv").read_text() == given


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_files_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "plan.toml") as temporary:
            temporary.write_text("concurrency = 30")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plan.toml").stat().st_mode) == mode


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("")
    (tmp_path / "plan.toml").chmod(0o640)
    with replacing(tmp_path / "plan.toml") as temporary:
        temporary.write_text("concurrency = 30")
    assert stat.S_IMODE((tmp_path / "plan.toml").stat().st_mode) == 0o640


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """A file half written by a process that was killed was read as a finished run's."""
    cells = tmp_path / "cells"
    cells.mkdir()
    left = [
        tmp_path / ".tune.json.0123abcd.json",
        cells / "..a.jsonl.0123abcd.jsonl.89ef4567.jsonl",
    ]
    own = [tmp_path / ".hidden.json", cells / ".a.jsonl.0123abcd.csv", cells / "a.jsonl"]
    for path in left + own:
        path.write_text("{}")
    with alone_in(tmp_path):
        pass
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in own)


def test_what_another_command_writes_below_is_not_removed(tmp_path: Path) -> None:
    """A reproduction's cells lie four folders deep; a run in a folder of its own there has its own lock."""
    deep = tmp_path / "cells" / "a" / "uniform" / "cells"
    other = tmp_path / "other"
    linked = tmp_path.with_name(f"{tmp_path.name}-linked")
    for folder in (deep, other, linked):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(linked)
    name = ".a.jsonl.0123abcd.jsonl"
    for folder in (deep, other, linked):
        (folder / name).touch()
    handle = os.open(other, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with alone_in(tmp_path):
        pass
    os.close(handle)
    left = [folder.name for folder in (deep, other, linked) if (folder / name).exists()]
    assert left == ["other", linked.name]
