"""A client that stays: one process per device that keeps imports, data and model between tasks.

Flower starts a process for every task, which imports Flower, torch and the app, loads the data and
builds the model. With ``flower-supernode --isolation process`` it leaves that to an executor beside
the SuperNode, which asks the node's Runtime API for tasks. Here that executor works on them itself:

``start``  (``sojourn client``) starts the other two, and a new worker when one has died, which reports the
           task as failed; ends with the node. If a worker dies while it exchanges something with the
           node, which then would wait for ever, the node is started again, too;
``node``   is Flower's SuperNode, which looks for messages soon after the last one instead of after 3 s;
``work``   has imported everything, and works on one task after the other.

This is the only module that uses what is private in Flower. Where that cannot be imported, `start`
becomes an ordinary ``flower-supernode``, which starts its processes itself.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sojourn.deployment.processes import GRACE_SECONDS, free_port, listens, tied
from sojourn.errors import InvalidInput

if TYPE_CHECKING:
    from flwr.app import Message

MODULE = "sojourn.deployment.flower.resident"
"""This module: where it runs as a program, its own name is another."""
OURS = ("--isolation", "--host", "--port", "--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile")
"""Options of a SuperNode that `start` sets itself."""
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_GROWTH = 0.02, 0.5, 1.3
"""A worker asks its node, on the same device, for the next task: soon after the last, then less often."""
NODE_POLL_SECONDS, LONGEST_NODE_POLL_SECONDS = 0.15, 3.0
"""A node asks the SuperLink in the same manner; 3 s is what Flower waits always."""
FLOWER_REPLY_SECONDS = 0.5
RESTART_SECONDS, LONGEST_RESTART_SECONDS = 1.0, 60.0
PULL_SECONDS = 120.0
"""For a task's input, which its node may still be receiving: longer than a link is likely to be cut."""
READY = b"ready"
WAITING, TALKING = b"", b"?"
LONGEST_PROGRESS = 2**16
"""Bytes of the file that are read in one step: far more than the few words that are written there."""


class Polling:
    """How long to sleep before asking again: little after something came, more and more after that.

    >>> polling = Polling(first=0.1, longest=0.3, growth=2.0)
    >>> [polling.next() for _ in range(3)]
    [0.1, 0.2, 0.3]
    >>> polling.came(), polling.next()
    (None, 0.1)
    """

    def __init__(self, *, first: float, longest: float, growth: float = POLL_GROWTH) -> None:
        self.first, self.longest, self.growth = first, longest, growth
        self._seconds = first

    def came(self) -> None:
        """Something came: ask again soon."""
        self._seconds = self.first

    def next(self) -> float:
        """The seconds until the next question."""
        seconds = self._seconds
        self._seconds = min(self.growth * seconds, self.longest)
        return seconds


class Progress:
    """What a worker is doing, in a file that outlives it.

    ``WAITING`` for a task; ``TALKING`` with its node, which may wait for ever for the rest if the
    worker dies; or computing: then it is the task's token and the reply that reports the task as
    failed.

    >>> with tempfile.TemporaryFile() as file:
    ...     progress = Progress(file.fileno())
    ...     progress.write(b"computing"), progress.read(), progress.write(WAITING), progress.read()
    (None, b'computing', None, b'')
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def write(self, state: bytes) -> None:
        """Replace what the file says, in one step that a kill cannot part."""
        os.pwrite(self.handle, len(state).to_bytes(4, "big") + state, 0)

    def read(self) -> bytes:
        """What was written last."""
        record = os.pread(self.handle, LONGEST_PROGRESS, 0)
        return record[4 : 4 + int.from_bytes(record[:4], "big")]


def start(arguments: Sequence[str]) -> int:
    """Run a SuperNode and its worker until the node ends; its exit code.

    ``arguments`` are those of ``flower-supernode``.
    """
    for option in OURS:
        if any(given.partition("=")[0] == option for given in arguments):
            raise InvalidInput(f"sojourn client sets {option} itself; leave it out")
    with tempfile.TemporaryFile() as file:
        return _run(arguments, Progress(file.fileno()))


def _run(arguments: Sequence[str], progress: Progress) -> int:
    port = free_port()
    worker = _start_worker(port, progress)
    if worker is None:
        sys.stderr.write("Flower's inside is not as expected: it starts a process for each task.\n")
        os.execvp("flower-supernode", ["flower-supernode", *arguments])
    own = [*arguments, "--isolation", "process", "--port", str(port)]
    node = _start_node(own)
    wait = RESTART_SECONDS
    try:
        while node.poll() is None:
            if worker is not None and worker.poll() is None:
                wait = RESTART_SECONDS if listens(port) else wait
                time.sleep(0.2)
                continue
            sys.stderr.write(f"the worker has ended; another starts in {wait:g} s\n")
            if unclear := progress.read() == TALKING:
                _end(node)
                progress.write(WAITING)
            time.sleep(wait)
            wait = min(2.0 * wait, LONGEST_RESTART_SECONDS)
            node = _start_node(own) if unclear else node
            worker = _start_worker(port, progress)
    finally:
        for process in (node, worker):
            if process is not None and process.poll() is None:
                process.terminate()
    return node.wait()


def _start_node(arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*tied(), sys.executable, "-m", MODULE, "node", *arguments])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Politely, so that the SuperLink hears of it at once; if that does not help, at once."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start_worker(port: int, progress: Progress) -> "subprocess.Popen[bytes] | None":
    """A worker that has imported everything; ``None`` if it could not."""
    reading, writing = os.pipe()
    handles = [str(writing), str(progress.handle)]
    command = [*tied(), sys.executable, "-m", MODULE, "work", str(port), *handles]
    worker = subprocess.Popen(command, pass_fds=(writing, progress.handle))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        ready = pipe.read(len(READY)) == READY
    if not ready:
        worker.wait()
        return None
    return worker


def node(arguments: Sequence[str]) -> None:
    """Be a SuperNode that asks for messages soon after one has come."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    inside = importlib.import_module("flwr.supernode.start_client_internal")
    polling = Polling(first=NODE_POLL_SECONDS, longest=LONGEST_NODE_POLL_SECONDS)

    def sleep(seconds: float) -> None:
        if seconds <= FLOWER_REPLY_SECONDS:  # it waits for a task's reply: one has come, then
            polling.came()
            time.sleep(min(seconds, FIRST_POLL_SECONDS))
        else:
            time.sleep(min(seconds, polling.next()))

    if getattr(inside, "time", None) is time:
        inside.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined]
    settle_tasks_of_ended_runs(inside)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def settle_tasks_of_ended_runs(inside: Any) -> None:
    """Have a SuperNode give a task up, or finish it, if its run ends while the node receives it.

    Flower's gives tasks up that it cannot receive for any other reason. Of a run that has ended it
    keeps the task, but not in mind: without its content the worker would wait for that, and with it
    the reply would be taken for that to the next message, whose own would wait for yet another.
    ``inside`` is Flower's module.
    """
    pull = getattr(inside, "pull_objects", None)
    store = getattr(inside, "_pull_and_store_message", None)
    ended = getattr(inside, "RunNotRunningException", None)
    if pull is None or store is None or ended is None:
        return

    def pull_objects(*arguments: object, **options: object) -> object:
        try:
            return pull(*arguments, **options)
        except ended as error:
            raise ConnectionError("the run has ended") from error

    def pull_and_store_message(
        *, confirm_message_received: Callable[..., None], **given: object
    ) -> object:
        def confirm(*arguments: object) -> None:
            with suppress(ended):
                confirm_message_received(*arguments)

        return store(confirm_message_received=confirm, **given)

    inside.pull_objects = pull_objects
    inside._pull_and_store_message = pull_and_store_message


class _Flower:
    """What is private in Flower and needed here; importing it may fail with another version."""

    def __init__(self) -> None:
        self.runtime = _having("flwr.supercore.runtime", "RuntimeHttpClient")
        self.clientapp = _having(
            "flwr.supernode.runtime.run_clientapp",
            *("pull_task_input", "push_message", "push_task_output", "install_from_fab"),
        )
        self.acquire = _having("flwr.proto.runtime_pb2", "AcquireTaskRequest")
        self.heartbeat = _having(
            "flwr.supercore.heartbeat", "HeartbeatSender", "make_task_heartbeat_fn_http"
        )
        self.interceptors = _having(
            "flwr.supercore.interceptors",
            *("RuntimeTokenHttpInterceptor", "RuntimeVersionHttpInterceptor"),
        )
        self.retry = _having("flwr.supercore.retry", "make_simple_http_retry_invoker")
        self.serde = _having("flwr.common.serde", "message_to_proto", "message_from_proto")
        self.message = _having("flwr.proto.message_pb2", "Message")

    def client(self, address: str, component: str, token: str | None = None) -> Any:
        """A connection to the node's Runtime API, as its executor or for one task."""
        interceptors = [self.interceptors.RuntimeVersionHttpInterceptor(component_name=component)]
        if token is not None:
            interceptors.append(self.interceptors.RuntimeTokenHttpInterceptor(token))
        return self.runtime.RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=True,
            root_certificates=None,
            interceptors=interceptors,
            retry_invoker=self.retry.make_simple_http_retry_invoker(),
        )


def _having(module: str, *names: str) -> Any:
    """A module that has all these ``names``."""
    found = importlib.import_module(module)
    for name in names:
        getattr(found, name)
    return found


class Worker:
    """Works on the tasks of one node, one after the other, in this process."""

    def __init__(self, address: str, progress: Progress) -> None:
        self.address, self.progress = address, progress
        self._flower = _Flower()
        self._app: Callable[..., object] | None = None
        self._app_hash = ""

    def run(self, first: str | None = None) -> None:
        """Ask for tasks for ever; ``first`` is the token of one that was acquired before."""
        if first is not None:
            self.work(first)
        elif crashed := self.progress.read():
            self.report(crashed)
        flower = self._flower
        node = flower.client(self.address, "SuperExec")
        request = flower.acquire.AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
        polling = Polling(first=FIRST_POLL_SECONDS, longest=LONGEST_POLL_SECONDS)
        while True:
            self.progress.write(TALKING)
            answer = node.AcquireTask(request)
            if answer.HasField("task") and answer.token:
                polling.came()
                self._begin_anew_if_other(answer.task.fab_hash, answer.token)
                self.work(answer.token)
            else:
                self.progress.write(WAITING)
                time.sleep(polling.next())

    def work(self, token: str) -> None:
        """Do one task and report it as Flower's own process would, failures included."""
        from flwr.common.constant import ErrorCode, SubStatus

        self.progress.write(TALKING)
        inside = self._flower.clientapp
        client = self._flower.client(self.address, "flwr-clientapp", token)
        heartbeat = self._flower.heartbeat.HeartbeatSender(
            self._flower.heartbeat.make_task_heartbeat_fn_http(client)
        )
        heartbeat.start()
        message = context = reply = None
        status, details, given_up = SubStatus.COMPLETED, "", False
        try:
            with _ending_unless_over_in(PULL_SECONDS):
                message, context, run, fab = inside.pull_task_input(client)
            self.progress.write(self._crash(token, message))
            reply = self._load(run, fab)(message=message, context=context)
        except Exception as error:  # whatever a task raises is the task's failure
            status, details = SubStatus.FAILED, f"{type(error)}:<'{error}'>"
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            if isinstance(error, inside.LoadClientAppError):
                code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION
            sys.stderr.write(f"a task failed: {details}\n")
            if message is not None:
                reply = _failure(code, details, message)
        except KeyboardInterrupt:
            if message is not None:
                raise
            # So Flower ends the process of a task that its node has given up; here is nothing to end yet.
            given_up = True
        if not given_up:
            output = {"sub_status": status, "details": details}
            self._hand_over(client, reply, context, context=context, **output)
        with suppress(RuntimeError):  # it has ended by itself
            heartbeat.stop()
        client.close()
        self.progress.write(WAITING)

    def _crash(self, token: str, message: "Message") -> bytes:
        """What the next worker reports if this one dies in a task: its token, and a reply."""
        from flwr.common.constant import ErrorCode

        failure = _failure(ErrorCode.CLIENT_APP_CRASHED, "the worker has died", message)
        reply = self._flower.serde.message_to_proto(failure)
        return token.encode() + b"\n" + bytes(reply.SerializeToString())

    def report(self, crashed: bytes) -> None:
        """Report the task in which the worker before has died as failed.

        Without that its node gives it up when it has heard nothing for a minute.
        """
        from flwr.common.constant import SubStatus

        token, _, proto = crashed.partition(b"\n")
        reply = self._flower.serde.message_from_proto(
            self._flower.message.Message.FromString(proto)
        )
        whose = SimpleNamespace(node_id=reply.metadata.src_node_id, run_id=reply.metadata.run_id)
        client = self._flower.client(self.address, "flwr-clientapp", token.decode())
        output = {"sub_status": SubStatus.FAILED, "details": reply.error.reason or ""}
        self._hand_over(client, reply, whose, context=None, **output)
        client.close()

    def _hand_over(self, client: object, reply: object, whose: object, **output: object) -> None:
        """Give the node a reply, if there is one, and the ``output`` of its task."""
        inside = self._flower.clientapp
        self.progress.write(TALKING)
        try:
            if reply is not None and whose is not None:
                inside.push_message(client, reply, whose)
            inside.push_task_output(client=client, **output)
        except (Exception, KeyboardInterrupt) as error:
            # The node hears nothing, and gives the task up; or has done so, and Flower interrupts.
            sys.stderr.write(f"a reply could not be handed over: {error}\n")

    def _begin_anew_if_other(self, app_hash: str, token: str) -> None:
        """Another app than before gets a new process, so that nothing of the old one is left."""
        if self._app is not None and app_hash != self._app_hash:
            handle = str(self.progress.handle)
            command = [sys.executable, "-m", MODULE, "work", self.address, "-", handle, token]
            os.execv(sys.executable, command)

    def _load(self, run: Any, fab: Any) -> Callable[..., object]:
        if self._app is None:
            inside = self._flower.clientapp
            inside.install_from_fab(fab.content, skip_prompt=True)
            load = inside.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
            self._app = load(run.fab_id, run.fab_version, fab.hash_str)
            self._app_hash = fab.hash_str
        return self._app


def _failure(code: int, reason: str, message: "Message") -> "Message":
    """The reply to ``message`` that says that its task failed."""
    from flwr.app import Message
    from flwr.app.error import Error

    return Message(Error(code=code, reason=reason), reply_to=message)


@contextmanager
def _ending_unless_over_in(seconds: float) -> Iterator[None]:
    """Within, this process may stay for so long; then it ends, and `start` begins another.

    Flower's node loses parts of a message if another of the same content is dropped, as when its
    SuperLink was killed; and then waits for them for two hours.
    """

    def end() -> None:
        sys.stderr.write(f"what a task needs has not come within {seconds:g} s\n")
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def work(port: str, ready: str, progress: str, token: str | None = None) -> None:
    """Import everything, say so on the file ``ready``, and work for the node at ``port``."""
    address = port if ":" in port else f"127.0.0.1:{port}"
    worker = Worker(address, Progress(int(progress)))
    importlib.import_module("sojourn.deployment.flower.apps")
    try:
        importlib.import_module("torch")
    except ImportError:
        sys.stderr.write("torch is not installed: the app must do without\n")
    if ready != "-":
        os.write(int(ready), READY)
        os.close(int(ready))
    while not listens(int(address.rpartition(":")[2])):
        time.sleep(0.1)
    worker.run(token)


if __name__ == "__main__":
    if sys.argv[1] == "node":
        node(sys.argv[2:])
    else:
        work(*sys.argv[2:])
