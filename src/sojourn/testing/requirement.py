"""How a suite says what does not conform."""


def require(condition: bool, message: str) -> None:
    """Raise ``AssertionError`` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(message)
