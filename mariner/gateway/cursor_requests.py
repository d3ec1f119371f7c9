"""Requests of operators about cursors (``mariner cursors``, and the console).

:func:`answer` runs on the event loop's thread of the gateway, :func:`ask` in another process.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge.control import client
from eventer_bridge.control.client import Addressee
from eventer_bridge.core.cursors import Cursor, Cursors
from eventer_bridge.errors import ConfigurationError, ControlError
from eventer_bridge.model import EventId
from mariner import limits

audit = logging.getLogger("audit")

REQUEST: Final = "cursors"


class CursorRequest(msgspec.Struct, frozen=True):
    """A request; ``client`` and ``name`` are empty for ``list``.

    ``ids`` are where it goes on, for each server (``reset``), or parked events, none for all
    (``redeliver``, ``drop``). ``operator`` is for the audit trail, as the sender says.
    """

    do: Literal["list", "show", "reset", "delete", "redeliver", "drop"]
    client: str = ""
    name: str = ""
    ids: tuple[EventId, ...] = ()
    operator: Annotated[str, msgspec.Meta(max_length=core_limits.MAX_NAME_CHARACTERS)] = ""


class CursorInfo(msgspec.Struct, frozen=True):
    """A cursor, for people and programs; times are in seconds since 1970.

    ``seen``: the last event that was acknowledged, of each server. ``lag_events``: events behind
    it, at most ``limits.MAX_LAG_EVENTS``; ``lag_s``: age of the oldest of them.
    """

    client: str
    name: str
    seen: list[EventId]
    created: float
    acked: float | None
    is_connected: bool
    lag_events: int
    lag_s: float
    n_parked: int


class ParkedInfo(msgspec.Struct, frozen=True):
    """A parked event; ``at`` in seconds since 1970, ``is_due`` if it is to be redelivered."""

    id: EventId
    reason: str
    at: float
    is_due: bool


class CursorAnswer(msgspec.Struct, frozen=True):
    """What there is, or was changed."""

    cursors: list[CursorInfo]
    parked: list[ParkedInfo] = []


def ask(socket: Path, request: CursorRequest, to: Addressee) -> CursorAnswer:
    """Ask a running gateway through its control socket; blocks.

    Raises ControlError if there is no such cursor or parked event, or no answer;
    ConfigurationError if the gateway has another version, and does not know such a request.
    """
    return client.request(
        socket,
        REQUEST,
        msgspec.to_builtins(request),
        CursorAnswer,
        to=to,
        what=f"{socket}: the gateway",
        timeout_s=limits.CURSORS_TIMEOUT_S,
    )


async def answer(cursors: Cursors, argument: Any) -> Any:
    """Answer a request (``control.server.HandlerCb``).

    Raises ConfigurationError if it is none, ControlError without such a cursor, EventerBridgeError.
    """
    try:
        request = msgspec.convert(argument, CursorRequest)
    except msgspec.ValidationError as e:
        raise ConfigurationError(f"cursors: {e}") from None
    if request.do == "list":
        found = sorted(cursors, key=lambda i: (i.client, i.name))
        return msgspec.to_builtins(CursorAnswer([await _info(cursors, i) for i in found]))
    cursor = cursors.find(request.client, request.name)
    if request.do == "reset":
        cursors.reset(cursor, {i.server: i for i in request.ids})
    elif request.do == "delete":
        cursors.delete(cursor)
    elif request.do != "show":
        ids = _parked_ids(cursors, cursor, request.ids)
        if request.do == "drop":
            cursors.done(cursor, ids)
        else:
            cursors.redeliver(cursor, ids)
    await cursors.rows.flush()
    if request.do != "show":
        extra = {"client": cursor.client, "cursor": cursor.name, "ids": _texts(request.ids)}
        if request.operator:
            extra["operator"] = request.operator
        audit.info(f"cursor {request.do}", extra=extra)
    parked = [
        ParkedInfo(event_id, row.reason, row.at.to_float(), row.is_due)
        for event_id, row in cursors.parked(cursor).items()
    ]
    return msgspec.to_builtins(CursorAnswer([await _info(cursors, cursor)], parked))


def _parked_ids(cursors: Cursors, cursor: Cursor, ids: Sequence[EventId]) -> list[EventId]:
    parked = cursors.parked(cursor)
    for event_id in ids:
        if event_id not in parked:
            [text] = _texts([event_id])
            raise ControlError(f"event {text} is not parked by {cursor.name!r}")
    return [*ids] or [*parked]


def _texts(ids: Sequence[EventId]) -> list[str]:
    return [f"{i.server}/{i.session}/{i.instance}" for i in ids]


async def _info(cursors: Cursors, cursor: Cursor) -> CursorInfo:
    await cursors.measure(cursor)
    row = cursor.row
    return CursorInfo(
        cursor.client,
        cursor.name,
        [*cursor.seen.values()],
        row.created.to_float(),
        None if row.acked is None else row.acked.to_float(),
        cursor.holder is not None,
        cursor.lag_events,
        cursor.lag_s,
        cursor.n_parked,
    )
