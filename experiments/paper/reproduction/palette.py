"""How the paper's strategies are drawn and called, and how those that are ours are marked."""

from sojourn.figures.palette import Ink

PALETTE = {
    "g-optimal": Ink("#a63d8f", "#ea94d4", "longdash", "square"),
    "h-optimal": Ink("#0064a4", "#5cb6f2", "longdashdot", "star"),
    "h-printed": Ink("#2a7f9e", "#8fd6ea", "dot", "triangle-down"),
    "paper": Ink("#111827", "#e8ebf0", "dot", "cross"),
}
_LABELS = {
    "g-optimal": "p*G",
    "h-optimal": "p*H",
    "h-printed": "p*H as printed",
}
_OURS = {
    "square-root": "square-root (ours)",
    "plan": "plan's routing (ours)",
    "never-queue": "never-queue (ours)",
    "never-queue, unbiased": "never-queue, unbiased (ours)",
}


def label(name: str) -> str:
    """What a person reads for a strategy.

    >>> label("g-optimal"), label("h-optimal, simulated")
    ('p*G', 'p*H, simulated')
    """
    stem, comma, rest = name.partition(", ")
    return _LABELS.get(stem, stem) + comma + rest


def marked_label(name: str) -> str:
    """The same, telling the strategies that are not the paper's.

    >>> marked_label("square-root"), marked_label("uniform")
    ('square-root (ours)', 'uniform')
    """
    return _OURS.get(name) or label(name)
