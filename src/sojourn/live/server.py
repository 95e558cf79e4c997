"""A small server for one page: on this machine only, for whoever has its address.

A page is one HTML text with its style and script inside.
"""

import contextlib
import hmac
import json
import secrets
import socket
import sys
import tempfile
import threading
import time
import traceback
import webbrowser
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs

from sojourn._support.files import SURROGATES
from sojourn._support.numbers import finite
from sojourn.errors import SojournError
from sojourn.figures.svg import DARK_RULES, LIGHT_RULES, SHAPES

Answer = Callable[[Mapping[str, object]], object]
"""What a question of the page is answered by: JSON values in, JSON values out."""
LOOPBACK = "127.0.0.1"
LONGEST_QUESTION = 1 << 20
"""Bytes of a question; the page's own have some hundred."""
MOST_DROPPED = 16 * LONGEST_QUESTION
DROPPED_AT_ONCE = 1 << 14
PATIENCE = 2.0
"""How much of an oversized request is drained (bytes, chunk, seconds) so that the client can read the 413."""
MOST_CONNECTIONS = 32
"""Open at once. A browser keeps six; whoever opens more and says nothing is cut off, oldest first."""
TOKEN_HEADER = "X-Sojourn-Token"  # nosec B105 # a name, no password
NONCE = "/*nonce*/"
"""Stands in a page where its own scripts say that they are."""


class LocalServer(ThreadingHTTPServer):
    """Serves ``page`` at ``/`` and each of ``answers`` at ``/api/NAME``, on a free port of 127.0.0.1.

    The address holds a token that nobody can guess. Without it, for another host or from another
    origin every request is refused, so that no other user and no other page in the same browser
    can ask anything.

    >>> server = LocalServer("<p>hello</p>", {})
    >>> server.address.startswith("http://127.0.0.1:")
    True
    >>> server.server_close()
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 4 * MOST_CONNECTIONS

    def __init__(self, page: str, answers: Mapping[str, Answer], *, port: int = 0) -> None:
        self.answers = answers
        self.token = secrets.token_urlsafe(24)
        self.nonce = secrets.token_urlsafe(16)
        self.page = page.replace(NONCE, self.nonce)
        self._silent: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{LOOPBACK}:{self.server_port}/?token={self.token}"

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Count a connection as silent until its first question."""
        assert isinstance(request, socket.socket)
        self.waits(request)
        try:
            super().process_request(request, client_address)
        except (
            RuntimeError
        ):  # no memory for a thread: this question is not answered, later ones may be
            self.shutdown_request(request)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """End a connection."""
        assert isinstance(request, socket.socket)
        self.works(request)
        super().shutdown_request(request)

    def waits(self, connection: socket.socket) -> None:
        """Nothing that may be answered has come from there yet: the longest silent gives way."""
        with self._lock:
            self._silent[connection] = None
            crowd = list(self._silent)[: max(0, len(self._silent) - MOST_CONNECTIONS)]
            for silent in crowd:
                del self._silent[silent]
        for silent in crowd:
            with contextlib.suppress(OSError):
                silent.shutdown(socket.SHUT_RDWR)

    def works(self, connection: socket.socket) -> None:
        """A whole question is being answered there, or it is over."""
        with self._lock:
            self._silent.pop(connection, None)


def serve(server: LocalServer, *, open_browser: bool, say: Callable[[str], None]) -> None:
    """Print the address, open the page, and answer until Ctrl-C; then give the port back."""
    with server, tempfile.TemporaryDirectory(prefix="sojourn-") as private:
        try:
            say(f"open {server.address}")
            sys.stdout.flush()
            if open_browser:
                # Through a file that only its owner can read: other users see command lines.
                page = Path(private) / "open.html"
                page.write_text(
                    f'<meta http-equiv="refresh" content="0;url={server.address}">',
                    encoding="utf-8",
                )
                webbrowser.open(page.as_uri())
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("ended")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "sojourn", ""
    timeout = 60
    server: LocalServer

    def do_GET(self) -> None:
        if not self._admitted():
            return
        if self._place[0] != "/":
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "there is only one page here: /"})
            return
        self._send(
            HTTPStatus.OK, self.server.page.encode(errors=SURROGATES), "text/html; charset=utf-8"
        )

    def do_POST(self) -> None:
        question = self._body()
        if question is None or not self._admitted():
            return
        self.server.works(self.connection)
        try:
            self._answer(self._place[0].removeprefix("/api/"), question)
        finally:
            self.server.waits(self.connection)

    def _answer(self, name: str, question: bytes) -> None:
        answer = self.server.answers.get(name)
        if answer is None:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": f"nobody answers to '{name[:40]}'"})
            return
        try:
            values = json.loads(question or b"{}")
            if not isinstance(values, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": "the question is no JSON object"})
            return
        try:
            found = answer(values)
        except SojournError as error:
            self._send_json(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
        except MemoryError as error:
            why = f"this takes more memory than there is: {error or 'ask for less'}"
            self._send_json(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": why})
        except Exception as error:
            traceback.print_exc()
            self._send_json(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                {"error": f"this should not happen ({type(error).__name__}): see the terminal"},
            )
        else:
            self._send_json(HTTPStatus.OK, found)

    def _admitted(self) -> bool:
        """Whether host, origin and token are ours; otherwise the refusal is sent."""
        hosts = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}
        origin = self.headers.get("Origin")
        given = self.headers.get(TOKEN_HEADER) or "".join(
            parse_qs(self._place[1]).get("token", [])[:1]
        )
        if self.headers.get("Host") not in hosts:
            refusal = "this server answers for 127.0.0.1 only"
        elif origin is not None and origin not in {f"http://{host}" for host in hosts}:
            refusal = "this server answers to its own page only"
        elif not hmac.compare_digest(given.encode(), self.server.token.encode()):
            refusal = "the token is missing or wrong: open the address that the command printed"
        else:
            return True
        self._send_json(HTTPStatus.FORBIDDEN, {"error": refusal})
        return False

    @property
    def _place(self) -> tuple[str, str]:
        """Path and query of what is asked for."""
        path, _, query = self.path.partition("?")
        return path, query

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        readable = length.isascii() and length.isdigit() and len(length) < 10
        if not readable or int(length) > LONGEST_QUESTION:
            self.close_connection = True
            self._send_json(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "the question is too long"}
            )
            self._let_it_finish()
            return None
        return self.rfile.read(int(length))

    def _let_it_finish(self) -> None:
        """Drop what is still being sent, within bounds: who is cut off while sending never reads the answer."""
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(PATIENCE)
        until = time.monotonic() + PATIENCE
        for _ in range(MOST_DROPPED // DROPPED_AT_ONCE):
            if not self.rfile.read1(DROPPED_AT_ONCE) or time.monotonic() > until:
                return

    def _send_json(self, status: HTTPStatus, values: object) -> None:
        text = json.dumps(finite(values), separators=(",", ":"), allow_nan=False)
        self._send(status, text.encode(errors=SURROGATES), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header(
            "Content-Security-Policy",
            f"default-src 'none'; script-src 'nonce-{self.server.nonce}'; style-src 'unsafe-inline'; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'",
        )
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # it hung up, was cut off, or took too long
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: addresses hold the token."""


def page(name: str, about: Mapping[str, object]) -> str:
    """The page ``name`` (``explore`` or ``watch``), which knows ``about`` before it asks anything."""
    style = "\n".join(
        [
            files("sojourn.report").joinpath("templates/report.css").read_text("utf-8"),
            SHAPES,
            LIGHT_RULES,
            f"@media screen {{ :root.dark {{ {DARK_RULES} }} }}",
            _part("live.css"),
        ]
    )
    known = json.dumps(about).replace("<", "\\u003c").replace("&", "\\u0026")
    parts = {
        "/*body*/": _part(f"{name}.html"),
        "/*title*/": f"Sojourn {name}",
        "/*style*/": style,
        "/*about*/": known,
        "/*script*/": _part("live.js") + _part(f"{name}.js"),
    }
    text = _part("shell.html")
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text


def _part(name: str) -> str:
    return files("sojourn.live").joinpath("pages", name).read_text("utf-8")
