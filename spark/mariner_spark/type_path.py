"""Type paths: an event type as one string, and back.

The path is the segments joined by ``/``. Within a segment, ``~`` is escaped as ``~0`` and ``/`` as
``~1``, as in a JSON pointer (RFC 6901). The type without segments is ``~``; a type of one empty
segment is the empty string. So types and paths map one to one, and a type is a prefix of another
one exactly if its path followed by ``/`` is.
"""

import re
from typing import Final

from eventer_bridge.model import EventType

_NO_SEGMENTS: Final = "~"

_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


def encode(event_type: EventType) -> str:
    """Path of a type."""
    if not event_type:
        return _NO_SEGMENTS
    path = "/".join(event_type)
    if "~" not in path and path.count("/") == len(event_type) - 1:
        return path
    return "/".join(i.replace("~", "~0").replace("/", "~1") for i in event_type)


def decode(path: str) -> EventType:
    """The opposite of :func:`encode`; raises ValueError if an escape sequence is invalid."""
    if path == _NO_SEGMENTS:
        return ()
    if _BAD_ESCAPE.search(path):
        raise ValueError("after '~' expected 0 (for '~') or 1 (for '/')")
    return tuple(i.replace("~1", "/").replace("~0", "~") for i in path.split("/"))
