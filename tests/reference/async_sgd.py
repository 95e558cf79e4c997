"""The paper's Algorithms 1 (central server) and 2 (client i), line by line.

Slow and literal: every client has a queue of received parameters, and computes one gradient at a
time. Which client reports next (C_t) and which is drawn next (A_{t+1}) come from a schedule; which
weights a gradient is computed at follows from the queues alone.
"""

from collections import deque

import torch


class Client:
    """Algorithm 2: a first-in-first-out queue of received parameters, and a local dataset."""

    def __init__(self, index, gradient):
        self.index = index
        self.queue = deque()
        self.gradient = gradient
        self.reported = 0

    def receive(self, parameter):
        self.queue.append(parameter)

    def report(self):
        parameter = self.queue.popleft()
        estimate = self.gradient(parameter, self.index, self.reported)
        self.reported += 1
        return estimate


def next_clients(schedule):
    """A_1, A_2, ...: whom the server draws after each completion; None if it never reports."""
    drawn = [None] * (schedule.rounds + 1)
    for client, dispatched in zip(schedule.client, schedule.dispatched, strict=True):
        if dispatched > 0:
            assert drawn[dispatched] is None
            drawn[dispatched] = int(client)
    for client, dispatched in zip(
        schedule.pending_client, schedule.pending_dispatched, strict=True
    ):
        if dispatched > 0:
            drawn[dispatched] = int(client)
    return drawn


def initial_tasks(schedule):
    """xi: how many tasks each client is sent before the first completion."""
    xi = [0] * schedule.network.size
    for clients, dispatched in (
        (schedule.client, schedule.dispatched),
        (schedule.pending_client, schedule.pending_dispatched),
    ):
        for client, sent in zip(clients, dispatched, strict=True):
            xi[client] += int(sent == 0)
    assert sum(xi) == schedule.network.concurrency
    return xi


def generalized_async_sgd(schedule, gradient, start, learning_rate):
    """Algorithm 1: every model parameter w_0, w_1, ..., w_T."""
    n = schedule.network.size
    p = schedule.network.client_routing.tolist()
    eta = learning_rate
    clients = [Client(i, gradient) for i in range(n)]
    w = [start]
    for i, xi in enumerate(initial_tasks(schedule)):
        for _ in range(xi):
            clients[i].receive(w[0])
    drawn = next_clients(schedule)
    for t in range(schedule.rounds):
        c = int(schedule.client[t])
        g = clients[c].report()
        w.append(w[t] - eta / (n * p[c]) * g)
        clients[drawn[t + 1]].receive(w[t + 1])
    return w


def batch_gradient(model, loss, samples_of):
    """The gradient estimate of a client, by plain automatic differentiation.

    ``samples_of(client, ordinal)`` is the batch of that task.
    """

    def gradient(parameter, client, ordinal):
        x, y = samples_of(client, ordinal)
        torch.nn.utils.vector_to_parameters(parameter.clone(), model.parameters())
        model.zero_grad()
        loss(model(x), y).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    return gradient
