"""Running a plan on real clients: the dispatcher, and its adapter to Flower."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "clientapp": ["client_app"],
        "deadlines": ["Deadlines"],
        "dispatcher": ["Dispatcher"],
        "serverapp": ["server_app"],
        "tasks": ["Actions", "Counts", "Event", "Task", "Use"],
    },
)
