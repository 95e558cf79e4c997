"""Who is answered: the page of this server on this machine, and nobody else."""

import socket
import urllib.error
import urllib.request

import pytest

from sojourn.live.server import LONGEST_QUESTION, LocalServer
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
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}{address}", timeout=30)


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
    assert ask("view", Origin=f"http://127.0.0.1:{server.port}")[0] == 200


def test_it_listens_on_this_machine_only(server: LocalServer) -> None:
    assert server._http.server_address[0] == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", server.port))


def test_what_is_no_question_is_refused(ask: Ask) -> None:
    assert ask("nothing")[0] == 404
    assert ask("view", b"{")[0] == 400
    assert ask("view", b"[1]")[0] == 400
    assert ask("view", b" " * (LONGEST_QUESTION + 1))[0] == 413
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
