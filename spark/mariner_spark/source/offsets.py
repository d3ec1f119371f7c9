"""Offsets of a stream: the last event that was read of each server.

As JSON, in the checkpoint of a query and in the option ``startingOffsets``::

    {"1": {"session": 1207, "instance": 3, "history": "6f1c…"}, "2": {"session": 77, "instance": 1}}

Events of a server are read in the order of their ids, which is the order in which they were
registered. A server without an offset is read from its first event. ``history`` is the history that
the gateways reported when the event was read (``histories``), if they did.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from eventer_bridge.model import INT64_MAX, EventId

Offsets: TypeAlias = Mapping[int, EventId]
"""By id of the server."""


_Number = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


class _Offset(msgspec.Struct, forbid_unknown_fields=True):
    session: _Number
    instance: _Number
    history: str | None = None


def encode(offsets: Offsets, histories: Mapping[int, str]) -> dict[str, dict[str, Any]]:
    """Offsets as Spark stores them; Spark compares texts, so equal offsets have equal texts."""
    encoded: dict[str, dict[str, Any]] = {}
    for server in sorted(offsets):
        event_id = offsets[server]
        offset = encoded[str(server)] = {"session": event_id.session, "instance": event_id.instance}
        if server in histories:
            offset["history"] = histories[server]
    return encoded


def decode(data: Mapping[str, Any]) -> dict[int, EventId]:
    """The opposite of :func:`encode`, without histories.

    Raises:
        ValueError: the data is invalid.
    """
    return {i: EventId(i, j.session, j.instance) for i, j in _convert(data).items()}


def decode_histories(data: Mapping[str, Any]) -> dict[int, str]:
    """Known histories by server; raises as :func:`decode`."""
    return {i: j.history for i, j in _convert(data).items() if j.history is not None}


def parse(text: str) -> dict[str, dict[str, Any]]:
    """Offsets as users write them, in the form that Spark stores.

    Raises:
        ValueError: the text is invalid.
    """
    try:
        data = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as e:
        raise ValueError(f"expected earliest, latest or offsets as JSON: {e}") from None
    return encode(decode(data), decode_histories(data))


def _convert(data: Mapping[str, Any]) -> dict[int, _Offset]:
    try:
        return {int(i): j for i, j in msgspec.convert(data, dict[str, _Offset]).items()}
    except ValueError as e:  # also what msgspec raises
        raise ValueError(
            f'expected offsets: {{"SERVER": {{"session": S, "instance": I}}, ...}}: {e}'
        ) from None
