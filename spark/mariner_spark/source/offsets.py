"""Offsets of a stream: what it has read of each server."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from eventer_bridge.model import INT64_MAX, EventId

Offsets: TypeAlias = Mapping[int, EventId]
"""The last event that was read of each server, by its id.

Events of a server are read in the order of their ids, in which they were registered. A server
without an offset is read from its first event. As JSON, in the checkpoint of a query and in the
option ``startingOffsets``::

    {"1": {"session": 1207, "instance": 3, "history": "6f1c…"}, "2": {"session": 77, "instance": 1}}

``history`` is what the gateways reported when the event was read, if they did."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


class _Offset(msgspec.Struct, forbid_unknown_fields=True):
    session: _Number
    instance: _Number
    history: str | None = None


def encode_offsets(offsets: Offsets, histories: Mapping[int, str]) -> dict[str, dict[str, Any]]:
    """Offsets as Spark stores them; Spark compares texts, so equal offsets have equal texts."""
    encoded: dict[str, dict[str, Any]] = {}
    for server in sorted(offsets):
        event_id = offsets[server]
        offset = encoded[str(server)] = {"session": event_id.session, "instance": event_id.instance}
        if server in histories:
            offset["history"] = histories[server]
    return encoded


def decode_offsets(data: Mapping[str, Any]) -> tuple[dict[int, EventId], dict[int, str]]:
    """Offsets and known histories, by server: the opposite of :func:`encode_offsets`.

    Raises ValueError if the data is invalid.
    """
    try:
        found = {int(i): j for i, j in msgspec.convert(data, dict[str, _Offset]).items()}
    except ValueError as e:  # also what msgspec raises
        raise ValueError(
            f'expected offsets: {{"SERVER": {{"session": S, "instance": I}}, ...}}: {e}'
        ) from None
    return (
        {i: EventId(i, j.session, j.instance) for i, j in found.items()},
        {i: j.history for i, j in found.items() if j.history is not None},
    )
