"""Offsets of a stream: for each server the last event that was read.

As JSON, in the checkpoint of a query and in the option ``startingOffsets``::

    {"1": {"session": 1207, "instance": 3}, "2": {"session": 77, "instance": 1}}

Events of a server are read in the order of their ids, which is the order in which they were
registered. A server that is not named is read from its first event on.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from eventer_bridge.model import INT64_MAX, EventId

Offsets: TypeAlias = Mapping[int, EventId]
"""By id of the server."""


_Number = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    session: _Number
    instance: _Number


def encode(offsets: Offsets) -> dict[str, dict[str, int]]:
    """As Spark keeps them. The same offsets always look the same, as Spark compares texts."""
    return {
        str(server): {"session": offsets[server].session, "instance": offsets[server].instance}
        for server in sorted(offsets)
    }


def decode(data: Mapping[str, Any]) -> dict[int, EventId]:
    """The opposite of :func:`encode`.

    Raises:
        ValueError: it is something else.
    """
    try:
        places = msgspec.convert(data, dict[str, _Place])
        return {int(i): EventId(int(i), j.session, j.instance) for i, j in places.items()}
    except ValueError as e:  # also what msgspec raises
        raise ValueError(
            f'expected offsets: {{"SERVER": {{"session": S, "instance": I}}, ...}}: {e}'
        ) from None


def parse(text: str) -> dict[int, EventId]:
    """Offsets as people write them.

    Raises:
        ValueError: it is none.
    """
    try:
        data = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as e:
        raise ValueError(f"expected earliest, latest or offsets as JSON: {e}") from None
    return decode(data)
