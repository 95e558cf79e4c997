"""The state of a running deployment for Prometheus, at ``http://HOST:PORT/metrics``."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sojourn.deployment.status import ClientStatus, RunStatus

OUTCOMES = ("used", "dropped", "refused", "lost", "withdrawn", "late", "unknown")
GAUGES = {
    "throughput": "Updates a second, over the last twenty",
    "staleness": "Mean staleness of the last twenty updates, in model versions",
    "accuracy": "Accuracy on the test set at the last evaluation",
    "loss": "Loss on the test set at the last evaluation",
    "epsilon": "Privacy spent on the client that has answered most often",
    "held": "Tasks that the server holds because no client can take them",
    "elapsed": "Seconds since the run began, those before a restart included",
    "heartbeat": "When the server last wrote its status, in Unix time",
}
CLIENT_GAUGES = {
    "seconds": "Mean seconds per task",
    "waiting": "Tasks that it has",
    "running": "Seconds that its present task has taken so far",
    "agreement": "Agreement of its updates with the others', from -1 to 1",
}


class StatusCollector(Collector):
    """Metrics of what ``status.json`` says; ``status`` gives its present content."""

    def __init__(self, status: Callable[[], RunStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every metric that is known by now."""
        status = self._status()
        replies = CounterMetricFamily(
            "sojourn_replies", "Replies by what became of them", labels=["outcome"]
        )
        for outcome in OUTCOMES:
            replies.add_metric([outcome], status.get("counts", {}).get(outcome, 0))
        yield replies
        yield CounterMetricFamily(
            "sojourn_tasks_routed", "Tasks routed", status.get("counts", {}).get("routed", 0)
        )
        for name, text in GAUGES.items():
            value = status.get(name)
            if isinstance(value, int | float):
                yield GaugeMetricFamily(f"sojourn_{name}", text, value)
        yield from self._of_clients(status.get("clients", []))

    @staticmethod
    def _of_clients(clients: list[ClientStatus]) -> Iterator[Metric]:
        alive = GaugeMetricFamily(
            "sojourn_client_alive", "Whether it gets tasks", labels=["client"]
        )
        used = CounterMetricFamily("sojourn_client_updates", "Updates used", labels=["client"])
        refused = CounterMetricFamily(
            "sojourn_client_refused", "Replies refused", labels=["client"]
        )
        for client in clients:
            alive.add_metric([client["name"]], float(client["status"] == "alive"))
            used.add_metric([client["name"]], client["used"])
            refused.add_metric([client["name"]], client["refused"])
        yield from (alive, used, refused)
        for name, text in CLIENT_GAUGES.items():
            gauge = GaugeMetricFamily(f"sojourn_client_{name}", text, labels=["client"])
            for client in clients:
                value = client.get(name)
                if isinstance(value, int | float):
                    gauge.add_metric([client["name"]], value)
            yield gauge


def serve_metrics(status: Callable[[], RunStatus], host: str, port: int) -> Callable[[], None]:
    """Serve metrics from a thread of their own; what ends that."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    server, thread = start_http_server(port, addr=host, registry=registry)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
