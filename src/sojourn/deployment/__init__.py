"""Running a plan on real clients: the dispatcher, and its adapter to Flower."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "flower.apps": ["client_app", "server_app"],
        "dispatcher": ["Dispatcher"],
        "guard": ["Guard"],
        "speeds": ["Deadlines"],
        "tasks": ["Actions", "Counts", "Event", "Task", "Use"],
    },
)
