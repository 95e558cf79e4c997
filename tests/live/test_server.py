"""Who is answered: the page of this server on this machine, and nobody else."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request

import pytest

from sojourn.live.server import LONGEST_QUESTION, MOST_CONNECTIONS, LocalServer
from tests.live.conftest import Ask, asking


def test_the_page_is_served_to_who_has_the_address(server: LocalServer) -> None:
    with urllib.request.urlopen(server.address, timeout=30) as reply:
        text, headers = reply.read().decode(), reply.headers
    assert "<title>Sojourn explore</title>" in text
    assert "/*" + "nonce" not in text
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'nonce-" in policy
    assert "unsafe-eval" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("address", ["/", "/?token=", "/?token=wrong"])
def test_without_the_token_there_is_no_page(server: LocalServer, address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{address}", timeout=30)


def test_without_the_token_nothing_is_answered(server: LocalServer) -> None:
    for token in (None, "", "wrong", server.token[:-1]):
        status, found = asking(server.address, token)("view")
        assert status == 403
        assert "token" in found["error"]


def test_another_host_is_refused(ask: Ask) -> None:
    status, found = ask("view", Host="evil.example:80")
    assert (status, "127.0.0.1" in found["error"]) == (403, True)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_another_origin_is_refused(ask: Ask, origin: str) -> None:
    status, found = ask("view", Origin=origin)
    assert (status, "own page" in found["error"]) == (403, True)


def test_its_own_origin_is_not(ask: Ask, server: LocalServer) -> None:
    assert ask("view", Origin=f"http://127.0.0.1:{server.server_port}")[0] == 200


def test_out_of_memory_is_said_in_a_sentence(
    ask: Ask, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(values: object) -> object:
        raise MemoryError

    monkeypatch.setitem(server.answers, "view", too_much)
    status, found = ask("view")
    assert (status, "more memory than there is" in found["error"]) == (422, True)


def test_it_listens_on_this_machine_only(server: LocalServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", server.server_port))


def test_what_is_no_question_is_refused(ask: Ask) -> None:
    assert ask("nothing")[0] == 404
    assert ask("view", b"{")[0] == 400
    assert ask("view", b"[1]")[0] == 400
    for length in (LONGEST_QUESTION + 1, 4 * LONGEST_QUESTION):
        assert ask("view", b" " * length)[0] == 413, "it is heard, and the answer too"
    assert ask("view")[0] == 200, "and it goes on"


def test_a_user_s_mistake_comes_back_as_a_sentence(ask: Ask) -> None:
    for wrong, word in (
        ({"concurrency": 0}, "tasks in flight"),
        ({"dispatch": "nobody"}, "never-queue"),
        ({"rates": [1, 2]}, "3 classes"),
        ({"rates": [1, 2, -1]}, "positive"),
        ({"exponent": 9}, "exponent"),
        ({"concurrenzy": 3}, "did you mean 'concurrency'"),
    ):
        status, found = ask("view", wrong)
        assert status == 422
        assert word in found["error"]


def raw(server: LocalServer, request: bytes) -> bytes:
    """What comes back for bytes as they are, until the server hangs up, which it may before the last byte."""
    reply = b""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536):
                reply += more
        except TimeoutError:
            raise
        except OSError:  # hung up on
            pass
    return reply


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /api/view HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n",
        b"POST /api/view HTTP/1.1\r\nHost: x\r\nContent-Length: \xb2\r\n\r\n",
        b"POST /api/view HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST //[/api/view HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%2e%2e/%2e%2e/etc/passwd?token=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + bytes(200) + b"\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
    ],
)
def test_rubbish_is_refused_without_a_word_at_the_terminal(
    server: LocalServer, ask: Ask, request_: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = raw(server, request_)
    assert reply[:12] in (
        b"",
        b"<!DOCTYPE HT",
        *(b"HTTP/1.1 %d" % code for code in (400, 403, 413, 414, 431, 501, 505)),
    )
    assert b"root:" not in reply
    assert ask("view")[0] == 200, "and it goes on"
    assert capfd.readouterr().err == ""


def test_a_path_with_the_token_leads_nowhere_else(server: LocalServer) -> None:
    request = f"GET /../../etc/passwd?token={server.token} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}"
    assert raw(server, f"{request}\r\n\r\n".encode()).startswith(b"HTTP/1.1 404")


def test_many_that_say_nothing_do_not_keep_the_page_from_being_answered(
    server: LocalServer, ask: Ask
) -> None:
    """Connections that send a few bytes and then wait: the oldest are cut off, none is answered."""
    opened = [
        socket.create_connection(("127.0.0.1", server.server_port), timeout=30)
        for _ in range(3 * MOST_CONNECTIONS)
    ]
    try:
        for connection in opened[:MOST_CONNECTIONS]:
            connection.close()
        for connection in opened[MOST_CONNECTIONS:]:
            with contextlib.suppress(OSError):
                connection.sendall(b"POST /api/view HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        assert ask("view")[0] == 200
        assert len(server._silent) <= MOST_CONNECTIONS
        threads = [t for t in threading.enumerate() if "process_request_thread" in t.name]
        for thread in threads[: -MOST_CONNECTIONS - 1]:
            thread.join(30)
        alive = sum(thread.is_alive() for thread in threads)
        assert alive <= MOST_CONNECTIONS + 1
    finally:
        for connection in opened:
            connection.close()
