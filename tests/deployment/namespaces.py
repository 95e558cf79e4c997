"""Network namespaces joined by a link that is slow, loses packets, and can be cut.

A thread carries the packets from one tun device to the other, and delays and drops them. That needs no
kernel module, which ``tc netem`` would.
"""

import contextlib
import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MOST_BYTES = 65536


def why_not() -> str | None:
    """Why namespaces cannot be made here; ``None`` if they can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    name = f"sj-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces are not permitted: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None if Path("/dev/net/tun").exists() else "there is no /dev/net/tun"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Link:
    """A link between this namespace and another: ``delay`` seconds each way, a fraction lost.

    While it is ``cut`` everything that is sent is lost.
    """

    name: str
    near: str
    far: str
    delay: float
    loss: float
    cut: threading.Event = field(default_factory=threading.Event)
    carried: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._ends = [tun(f"{self.name}a"), tun(f"{self.name}b")]
        ip("netns", "add", self.name)
        ip("link", "set", f"{self.name}b", "netns", self.name)
        ip("addr", "add", self.near, "peer", self.far, "dev", f"{self.name}a")
        ip("link", "set", f"{self.name}a", "up")
        inside = ("netns", "exec", self.name, "ip")
        ip(*inside, "addr", "add", self.far, "peer", self.near, "dev", f"{self.name}b")
        ip(*inside, "link", "set", f"{self.name}b", "up")
        ip(*inside, "link", "set", "lo", "up")
        for source, target in (self._ends, self._ends[::-1]):
            threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: int, target: int) -> None:
        chance, waiting = random.Random(source), deque[tuple[float, bytes]]()
        while not self._over.is_set():
            patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
            readable, _, _ = select.select([source], [], [], patience)
            if readable:
                packet = os.read(source, MOST_BYTES)
                if self.cut.is_set() or chance.random() < self.loss:
                    self.lost += 1
                else:
                    waiting.append((time.monotonic() + self.delay, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                with contextlib.suppress(OSError):
                    os.write(target, waiting.popleft()[1])
                    self.carried += 1

    def close(self) -> None:
        self._over.set()
        time.sleep(0.3)
        for end in self._ends:
            os.close(end)
        ip("netns", "del", self.name)


def tun(name: str) -> int:
    """A tun device of that name, as the file that its packets are read from."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return handle


@contextlib.contextmanager
def links(count: int, *, delay: float, loss: float) -> Iterator[list[Link]]:
    """So many namespaces, each with a link of its own to this one."""
    made: list[Link] = []
    try:
        for number in range(count):
            name, net = f"sj{os.getpid() % 10000}n{number}", f"10.213.{number}"
            made.append(Link(name, f"{net}.1", f"{net}.2", delay, loss))
        yield made
    finally:
        for link in made:
            link.close()
