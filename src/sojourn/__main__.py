"""``python -m sojourn`` is the ``sojourn`` command."""

import errno
import sys

LEAST_ADDRESS_SPACE = 512 * 2**20
"""Bytes of address space that the numerical libraries need; `analyze` takes 470 MB."""
RESERVE = 2**22
"""Bytes that are given back when memory has run out, so that there is some to say so."""


def main() -> None:
    """Run the command; where memory is limited so that libraries cannot be loaded, say so."""
    _check_limit()
    reserve = bytearray(RESERVE)
    try:
        if _address_space() is not None:
            _take_what_is_needed()
        from sojourn.cli import main as run

        run()  # commands load what they alone need
    except Exception as error:
        del reserve
        if not _is_out_of_memory(error):
            raise
        sys.stderr.write(
            "error: there is too little memory to load the libraries that this needs, or to start a "
            "thread: raise the limit (ulimit -v), or close other programs\n"
        )
        sys.exit(2)


def _check_limit() -> None:
    """Refuse a limit under which native libraries fail while they load.

    Not all of them check what they allocate: below this limit a process may end by a signal, without
    an exception that could be turned into a sentence. Nor does Python: a thread that runs out of memory
    while an exception passes through it can loop for ever.
    """
    limit = _address_space()
    if limit is not None and limit < LEAST_ADDRESS_SPACE:
        sys.stderr.write(
            f"error: memory is limited to {limit // 2**20} MB of addresses, and the numerical libraries "
            f"need {LEAST_ADDRESS_SPACE // 2**20} MB: raise the limit (ulimit -v)\n"
        )
        sys.exit(2)


def _take_what_is_needed() -> None:
    """Take few addresses where they are limited, and at once those that a library would wait for for ever."""
    from sojourn._support.memory import reserve_for_linear_algebra, share_one_heap

    share_one_heap()
    reserve_for_linear_algebra()


def _address_space() -> int | None:
    """The bytes of addresses to which this process is limited, if it is."""
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also where a library says so in its own words."""
    words = (
        "cannot allocate memory",
        "failed to map segment",
        "cannot apply additional memory",
        "can't start new thread",
    )
    while error is not None:
        text = str(error).lower()
        if isinstance(error, MemoryError) or any(word in text for word in words):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        # What CPython raises for an extension that ran out of memory and did not report it.
        if isinstance(error, SystemError) and "exception" in text and _address_space() is not None:
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
