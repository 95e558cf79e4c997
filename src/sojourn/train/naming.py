"""Names with one parameter, as experiments write them: ``labels(3)``, ``mlp(64)``, ``cifar-10(8)``."""

import re
from collections.abc import Iterable

from sojourn.errors import UnknownName


def split_parameter(kind: str, text: str, offered: Iterable[str]) -> tuple[str, str | None]:
    """The name and the parameter in ``text``; a name that is not offered raises ``UnknownName``.

    >>> split_parameter("partition", "labels(3)", ["labels"])
    ('labels', '3')
    """
    match = re.fullmatch(r"\s*([a-z0-9-]+)\s*(?:\(\s*([^()\s]+)\s*\))?\s*", text)
    names = list(offered)
    if match is None or match[1] not in names:
        raise UnknownName(kind, match[1] if match else text, names)
    return match[1], match[2]
