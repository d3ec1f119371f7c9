r"""Where JSON has half of a surrogate pair, such as ``"\ud800"``.

JSON's grammar allows it (RFC 8259, section 8.2), but no UTF-8 text can hold it, and decoding takes
it for wrong syntax. Without it, the same JSON tells whether that was all.

Sans I/O; any thread.
"""

import re
from typing import Final

_FIRST: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_SECOND: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# begins alike in any case, which the search is fast for
_LONE: Final = re.compile(
    rb"\\u(?:[dD][89abAB][0-9a-fA-F]{2}(?!%b)|[dD][c-fC-F][0-9a-fA-F]{2}(?<!%b))"
    % (_SECOND, _FIRST + _SECOND)
)


def mend(data: bytes) -> tuple[bytes, int] | None:
    """JSON with another character in place of each lone surrogate.

    Args:
        data: JSON, of bounded length.

    Returns:
        As many bytes, whose texts may differ in other places, too; and the position of the first
        lone surrogate. None: there is none.
    """
    plain = data.replace(rb"\\", b"__")  # each backslash that is left begins an escape
    found = _LONE.search(plain)
    return None if found is None else (_LONE.sub(rb"\\ufffd", plain), found.start())


def reason(position: int) -> str:
    """What is told about one."""
    return f"lone surrogate at byte {position}"
