"""The digits work of ``train.py`` in Flower's simulation; called by it, in Flower's environment.

The server keeps the queues and has at most one message out per client, since Flower's simulation
lets messages to one client overlap. Clients compute a gradient of the perceptron on a batch of
their own samples, and the server applies Generalized AsyncSGD under uniform routing.
"""

import collections
import functools
import json
import sys
import time

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

CONCURRENCY = 100
CLIENTS = 20
BATCH = 32
LEARNING_RATE = 0.05
POLL_SECONDS = 0.005

client_app = ClientApp()


def perceptron():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


@functools.cache
def world(path):
    """The model and all samples, once per process."""
    torch.set_num_threads(1)
    with np.load(path) as archive:
        return perceptron(), torch.from_numpy(archive["x"]), torch.from_numpy(archive["y"])


@client_app.train()
def replay(message, context):
    task = message.content["task"]
    model, x, y = world(task["data"])
    size = len(y) // CLIENTS
    rng = np.random.default_rng([task["client"], task["ordinal"]])
    chosen = torch.from_numpy(task["client"] * size + rng.choice(size, BATCH, replace=False))
    weights = torch.from_numpy(message.content["weights"].to_numpy_ndarrays()[0].copy())
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    flat = torch.cat([g.flatten() for g in gradients]).numpy()
    return Message(RecordDict({"gradient": ArrayRecord([flat])}), reply_to=message)


class Server:
    """Queues of weights, one message out per client."""

    def __init__(self, grid, data):
        self.grid, self.data = grid, data
        while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
            time.sleep(POLL_SECONDS)
        self.nodes = nodes
        self.queues = [collections.deque() for _ in self.nodes]
        self.out, self.busy, self.sent = {}, set(), collections.Counter()

    def assign(self, client, weights):
        self.queues[client].append(weights)
        self.push(client)

    def push(self, client):
        if client in self.busy or not self.queues[client]:
            return
        task = {"client": client, "ordinal": self.sent[client], "data": self.data}
        content = RecordDict(
            {"weights": ArrayRecord([self.queues[client].popleft()]), "task": ConfigRecord(task)}
        )
        (number,) = self.grid.push_messages([Message(content, self.nodes[client], "train")])
        self.out[number] = client
        self.busy.add(client)
        self.sent[client] += 1

    def pull(self):
        """Finished tasks as (client, gradient); waits for one at least."""
        while not (replies := list(self.grid.pull_messages(list(self.out)))):
            time.sleep(POLL_SECONDS)
        for reply in replies:
            client = self.out.pop(reply.metadata.reply_to_message_id)
            self.busy.remove(client)
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            yield client, reply.content["gradient"].to_numpy_ndarrays()[0]


def main(data, updates):
    """Print the updates made and the seconds from the first to the last; Ray's start is not counted."""
    server_app, outcome = ServerApp(), {}

    @server_app.main()
    def serve(grid, context):
        server, rng = Server(grid, data), np.random.default_rng(1)
        weights = torch.nn.utils.parameters_to_vector(perceptron().parameters()).detach().numpy()
        for task in range(CONCURRENCY):
            server.assign(task % CLIENTS, weights)
        done, begin = 0, 0.0
        while done < updates:
            for client, gradient in server.pull():
                begin = begin or time.perf_counter()
                weights = weights - LEARNING_RATE * gradient
                done += 1
                server.push(client)
                server.assign(int(rng.integers(CLIENTS)), weights)
        outcome.update(updates=done - 1, seconds=time.perf_counter() - begin)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    sys.stdout.write("\n" + json.dumps(outcome) + "\n")
