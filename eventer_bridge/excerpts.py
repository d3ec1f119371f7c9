"""Excerpts of peers' texts: answers and log lines do not grow with the message."""

from typing import Final

from eventer_bridge import limits
from eventer_bridge.model import EventType

_ELLIPSIS: Final = "…"


def cut(text: str, max_characters: int = limits.MAX_REASON_CHARACTERS) -> str:
    """A text, or its beginning with "…"."""
    if len(text) <= max_characters:
        return text
    return text[: max_characters - 1] + _ELLIPSIS


def quoted_type(event_type: EventType) -> str:
    """An event type or query type in quotes, its segments joined by "/", cut."""
    size = limits.MAX_REASON_CHARACTERS // 2
    # never joined in full: it may be as long as a message
    segments = [segment[: size + 1] for segment in event_type[: size + 1]]
    return repr(cut("/".join(segments), size))
