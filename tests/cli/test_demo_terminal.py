"""``sojourn demo`` as a person sees it: a terminal of 80 columns, one bar, an answer in whole words."""

import codecs
import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.browser import kept

COLUMNS = 80
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ERASED = re.compile(r"\x1b\[2K")
SHARE = re.compile(r"[━╺╸]\s+(\d+)% \d+:\d\d:\d\d gone")


def in_a_terminal(folder: Path, *arguments: str) -> list[tuple[float, str]]:
    """What ``sojourn`` writes to a terminal of 80 columns, and when; it must end well."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS))
        os.execv(sys.executable, [sys.executable, "-m", "sojourn", *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    begun = time.monotonic()
    written: list[tuple[float, str]] = []
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # so Linux says that the other end is closed
            break
        if not more:
            break
        written.append((time.monotonic() - begun, decoder.decode(more)))
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, written[-20:]
    return written


def keep_recording(written: list[tuple[float, str]], path: Path) -> None:
    """Write what was shown as a recording of asciinema, with its times: no test asks for a speed."""
    header = {"version": 2, "width": COLUMNS, "height": 24}
    lines = [json.dumps(header), *(json.dumps([at, "o", text]) for at, text in written)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_terminal(written: str) -> None:
    """One bar that never goes back, lines within the width, no "a ± b" broken, the page last."""
    shown = CONTROL.sub("", ERASED.sub("\n", written))
    shares = [int(share) for share in SHARE.findall(shown)]
    assert shares == sorted(shares)
    assert len(set(shares)) > 5 and shares[-1] >= 90
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert lines[0].startswith("the fleet: 30 clients")
    assert lines[-1].startswith("Page: file://")
    long = [line for line in lines if len(line) > COLUMNS and not line.startswith("Page: ")]
    assert long == []
    assert not any(line.endswith("±") or line.startswith("±") for line in lines)
    assert sum(line.startswith("Use ") for line in lines) == 1


@pytest.mark.slow
def test_the_demo_has_one_bar_and_whole_sentences(tmp_path: Path) -> None:
    written = in_a_terminal(tmp_path, "demo", "--out", "demo")
    keep_recording(written, kept(tmp_path, "demo-terminal.cast"))
    check_terminal("".join(text for _, text in written))
