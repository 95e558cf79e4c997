"""The state of a running deployment for Prometheus, at ``http://HOST:PORT/metrics``."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TypeAlias

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sojourn.deployment.status import RunStatus
from sojourn.deployment.tasks import Counts

OUTCOMES = tuple(count.name for count in fields(Counts) if count.name != "routed")
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
Kind: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]
OF_CLIENTS: dict[str, tuple[Kind, str]] = {
    "alive": (GaugeMetricFamily, "Whether it gets tasks"),
    "updates": (CounterMetricFamily, "Updates used"),
    "refused": (CounterMetricFamily, "Replies refused"),
    "seconds": (GaugeMetricFamily, "Mean seconds per task"),
    "waiting": (GaugeMetricFamily, "Tasks that it has"),
    "running": (GaugeMetricFamily, "Seconds that its present task has taken so far"),
    "agreement": (GaugeMetricFamily, "Agreement of its updates with the others', from -1 to 1"),
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
        clients = [
            {**client, "alive": client["status"] == "alive", "updates": client["used"]}
            for client in status.get("clients", [])
        ]
        for name, (kind, text) in OF_CLIENTS.items():
            metric = kind(f"sojourn_client_{name}", text, labels=["client"])
            for client in clients:
                if isinstance(value := client.get(name), int | float):
                    metric.add_metric([str(client["name"])], float(value))
            yield metric


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
