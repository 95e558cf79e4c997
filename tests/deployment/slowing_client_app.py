"""A client app whose node becomes slow when ``slow-file`` appears: it says by how many seconds."""

import time
from pathlib import Path

from federated.task import problem
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sojourn.deployment import client_app

steady = client_app(problem)
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return steady(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    slow = Path(str(context.node_config.get("slow-file", "")))
    if slow.is_file():
        time.sleep(float(slow.read_text()))
    return steady(message, context)
