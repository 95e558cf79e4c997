"""Running a plan on real clients: the dispatcher, and its adapter to Flower."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "deadlines": ["Deadlines"],
        "dispatcher": ["Dispatcher"],
        "tasks": ["Actions", "Counts", "Event", "Task", "Use"],
    },
)
