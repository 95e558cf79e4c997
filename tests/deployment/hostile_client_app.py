"""A client app whose node can be told to misbehave: ``--node-config 'hostile=true'``."""

import numpy as np
from federated.task import problem
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sojourn.deployment import client_app

honest = client_app(problem)
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    if not context.node_config.get("hostile", False):
        return honest(message, context)
    number = message.content["task"]["number"]
    ordinal = message.content["task"]["ordinal"]
    update, named = [
        (np.full(650, np.nan, dtype=np.float32), number),
        (np.ones(17, dtype=np.float32), number),
        (np.full(650, 1e30, dtype=np.float32), number),
        (np.ones(650, dtype=np.float32), number - 1),
        (np.ones(650, dtype=np.float16), number),
    ][ordinal % 5]
    content = {
        "update": ArrayRecord({"update": Array(update)}),
        "task": ConfigRecord({"number": named, "loss": 0.0}),
    }
    return Message(RecordDict(content), reply_to=message)
