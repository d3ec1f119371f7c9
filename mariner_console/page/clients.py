"""Clients and cursors, those that are furthest behind first.

Single ones are known only from the control socket of a gateway on this machine; ``/metrics`` has
them together. Changes of cursors go over it, as those of ``mariner cursors``; they are asked twice,
and kept with the name of the user in the log, and in the audit trail of the gateway.
"""

import logging
import time
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec
from nicegui import ui
from typing_extensions import override

from eventer_bridge.errors import ConfigurationError, ControlError, InvalidEventError
from eventer_bridge.model import (
    Event,
    EventId,
    QueryTimeseriesParams,
    Timestamp,
    format_event_id,
)
from mariner.cli.values import counted, parse_event_id
from mariner.errors import MarinerError
from mariner.gateway.cursor_requests import CursorRequest, ParkedInfo
from mariner.gateway.status import ClientStatus, ConnectionStatus, CursorStatus
from mariner.limits import MAX_SLOWEST
from mariner_console import limits, texts
from mariner_console.page import parts
from mariner_console.page.parts import Columns, Panel, TextTable
from mariner_console.watcher import Watcher

mlog = logging.getLogger(__name__)


class ClientsPanel(Panel):
    """Clients by wire; single ones and slow connections, if there is a control socket."""

    asks = True

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        with parts.card("Clients by wire") as self._by_wire:
            self._wires = TextTable(_WIRES, empty="Not known.")
        with parts.card("Clients, those furthest behind first"):
            if watcher.config.control is None:
                parts.note(
                    "Single clients are known only from the control socket of a gateway on this"
                    " machine: 'control' of this gateway in the configuration of the console."
                )
                return
            self._failure = parts.failure()
            self._clients = TextTable(
                _CLIENTS,
                key=lambda i: f"{i.wire} {i.name}",
                empty="There is none.",
                detail=_quotas,
            )
            self._left_out = parts.note("")
        with parts.card(f"Connections that read too slowly, the slowest {MAX_SLOWEST}"):
            self._slow = TextTable(_SLOWEST, empty="No connection is too slow.")

    @override
    async def refresh(self) -> None:
        view = self._watcher.view
        self._wires.set(parts.rows_by(view.scrape, "wire", "clients"))
        parts.show_old(self._by_wire, not view.is_measured(time.monotonic()))
        if self._watcher.config.control is None:
            return
        if (status := await parts.status_of(self._watcher, self._failure)) is None:
            self._clients.set(None)
            self._slow.set(None)
            return
        n_shown = len(status.clients)
        self._clients.set(status.clients)
        told = parts.of_first(n_shown, n_shown + status.clients_left_out, "clients are shown")
        self._left_out.set_text(told)
        self._slow.set(enumerate(status.slowest, 1))


def _bytes(value: float | None) -> str:
    return texts.of_number(value, "B")


def _quota(client: ClientStatus) -> str:
    held = ["held back now"] if client.is_held else []
    return ", ".join([*held, *(f"met {name}" for name, use in client.quota.items() if use.hits)])


def _quotas(client: ClientStatus) -> str:
    """How much it used of its quotas, a line each."""
    lines = [
        f"{name}: {texts.of_number(use.used)} of {use.limit:,}, met {counted(use.hits, 'time')}"
        for name, use in client.quota.items()
    ]
    return "\n".join(lines) or "It has no quota."


_WIRES: Columns[parts.MetricRow] = {
    "Wire": lambda i: texts.shown(i.label),
    "Clients": parts.metric("clients", texts.of_number),
    "Connections": parts.metric("connections", texts.of_number),
    "Unread by all": parts.metric("send_queue_bytes", _bytes),
    "Unread by one": parts.metric("send_queue_largest_bytes", _bytes),
    "Slowest behind": parts.metric("send_lag_seconds", texts.of_seconds),
}

_CLIENTS: Columns[ClientStatus] = {
    "Client": lambda i: texts.shown(i.name),
    "Wire": lambda i: texts.shown(i.wire),
    "Behind": lambda i: texts.of_seconds(i.behind_s) if i.behind_s else "no",
    "Unread": lambda i: _bytes(i.unread_bytes),
    "Registered/s": lambda i: texts.of_number(i.registered_per_s),
    "Notified/s": lambda i: texts.of_number(i.notified_per_s),
    "Connections": lambda i: texts.of_number(i.connections),
    "Subscriptions": lambda i: texts.of_number(i.subscriptions),
    "Quota": _quota,
}

_SLOWEST: Columns[tuple[int, ConnectionStatus]] = {
    "#": lambda i: str(i[0]),
    "Client": lambda i: texts.shown(i[1].client or texts.UNKNOWN),
    "Wire": lambda i: texts.shown(i[1].wire),
    "Address": lambda i: texts.shown(i[1].peer),
    "Behind": lambda i: texts.of_seconds(i[1].behind_s),
    "Unread": lambda i: _bytes(i[1].unread_bytes),
}


# --- cursors ------------------------------------------------------------------------------


class CursorsPanel(Panel):
    """Cursors, and the events that they parked; ``writer`` is the user, if they may change them."""

    asks = True

    def __init__(self, watcher: Watcher, writer: str | None) -> None:
        self._watcher = watcher
        self._writer = writer
        self._found: dict[str, CursorStatus] = {}
        self._picked: CursorStatus | None = None
        self._wanted: str | None = None  # of a link: the key of a cursor to be picked
        self._parked: list[ParkedInfo] = []
        self._events_of: dict[EventId, Event] = {}  # the parked ones, as far as they are found
        self._picked_event: EventId | None = None
        is_local = watcher.config.control is not None
        with parts.card("Cursors, those furthest behind first"):
            empty = "There is none."
            if is_local:
                self._table = TextTable(_CURSORS, key=_key, empty=empty, on_pick=self._pick)
            else:
                self._clients = TextTable(_CURSORS_OF_CLIENT, empty=empty)
            self._failure = parts.failure()
            if not is_local:
                parts.note(
                    "Single cursors, and the events that they parked, are seen and reset only over"
                    " the control socket of a gateway on this machine: 'control' of this gateway in"
                    " the configuration of the console."
                )
                return
        with parts.card("The cursor that is picked") as self._card:
            self._name = parts.note("")
            self._events = TextTable(
                _PARKED,
                key=lambda i: format_event_id(i.info.id),
                empty="It parked none.",
                on_pick=self._pick_event,
                detail=_detail,
            )
            self._not_found = parts.note("")
            if writer is not None:
                self._make_form()
            self._refusal = parts.failure()
            self._done = ui.label("").classes("console-well").props("role=status")
        self._card.set_visibility(False)

    def _make_form(self) -> None:
        with ui.element("div").classes("console-form"):
            ui.button("Redeliver …", on_click=lambda: self._change_parked("redeliver"))
            ui.button("Drop …", on_click=lambda: self._change_parked("drop")).props("outline")
            parts.note("The event that is open, or all that are parked.")
        with ui.element("div").classes("console-form"):
            self._behind = parts.field("Go on behind (SERVER/SESSION/INSTANCE …; empty: the start)")
            ui.button("Reset …", on_click=self._reset).props("outline")

    @override
    async def refresh(self) -> None:
        if self._watcher.config.control is None:
            scrape = self._watcher.view.scrape
            rows = parts.rows_by(scrape, "client", "cursor_lag_seconds", is_ranked=True)
            self._clients.set(rows)
            return
        if (status := await parts.status_of(self._watcher, self._failure)) is None:
            self._table.set(None)
            return
        self._found = {_key(i): i for i in status.cursors}
        self._table.set(status.cursors)
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            self._table.pick(wanted)
            await self._pick(wanted)
        if self._picked is None:
            return
        before, self._picked = self._picked, self._found.get(_key(self._picked))
        if self._picked is None:
            self._card.set_visibility(False)
        elif self._picked.n_parked != before.n_parked:
            await self._look(self._picked)

    @override
    def state(self) -> dict[str, str]:
        return {} if self._picked is None else {"cursor": _key(self._picked)}

    @override
    async def open(self, state: Mapping[str, str]) -> None:
        self._wanted = state.get("cursor")

    async def _pick(self, key: str | None) -> None:
        self._picked = self._found.get(key or "")
        self._card.set_visibility(self._picked is not None)
        self.on_state()
        self._say("", "")
        await self._show([])
        if self._picked is not None:
            self._name.set_text(_title(self._picked))
            await self._look(self._picked)

    async def _look(self, cursor: CursorStatus) -> None:
        reason = await self._request(CursorRequest("show", cursor.client, cursor.name))
        if reason is not None:
            self._say(reason, "")

    async def _request(self, request: CursorRequest) -> str | None:
        """Ask for something, and show what is parked then; returns why not."""
        try:
            answer = await self._watcher.request_cursors(request)
        except (ConfigurationError, ControlError) as e:
            return str(e)
        at = self._picked
        if at is not None and (at.client, at.name) == (request.client, request.name):
            await self._show(answer.parked)
        return None

    async def _show(self, parked: list[ParkedInfo]) -> None:
        self._parked = parked
        self._show_parked()
        self._not_found.set_text("")
        if self._picked_event not in {i.id for i in parked}:
            self._picked_event = None
            self._events.pick(None)
        missing = [i.id for i in parked if i.id not in self._events_of]
        if not missing:
            return
        try:
            params = QueryTimeseriesParams(ids=missing)
            found, _ = await self._watcher.query(params, len(missing))
        except (MarinerError, TimeoutError) as e:
            self._not_found.set_text(texts.shown(f"Payloads are not known: {e}", 400))
            return
        ids = {i.id for i in parked}
        known = self._events_of | {i.id: i for i in found}
        self._events_of = {i: event for i, event in known.items() if i in ids}
        n_found = len(self._events_of)
        told = f"payloads are known of {n_found:,} of {len(parked):,}"
        self._not_found.set_text(told if n_found < len(parked) else "")
        if self._parked is parked:
            self._show_parked()

    def _show_parked(self) -> None:
        self._events.set(_Parked(i, self._events_of.get(i.id)) for i in self._parked)

    def _say(self, refusal: str, done: str) -> None:
        self._refusal.set_text(texts.shown(refusal, 400))
        self._done.set_text(done)

    def _pick_event(self, text: str | None) -> None:
        ids = (i.id for i in self._parked)
        self._picked_event = next((i for i in ids if format_event_id(i) == text), None)

    # --- changes --------------------------------------------------------------------------

    async def _change_parked(self, do: Literal["redeliver", "drop"]) -> None:
        cursor, event_id = self._picked, self._picked_event
        if cursor is None:
            return
        if not self._parked:
            self._say("It parked none.", "")
            return
        what = "all parked events" if event_id is None else format_event_id(event_id)
        ids = () if event_id is None else (event_id,)
        request = CursorRequest(do, cursor.client, cursor.name, ids, self._writer or "")
        await self._change(request, f"{what} of {_title(cursor)}")

    async def _reset(self) -> None:
        cursor, text = self._picked, self._behind.value
        if cursor is None:
            return
        try:
            if len(text) > limits.MAX_INPUT_CHARACTERS:
                raise InvalidEventError("that is too long")
            ids = tuple(parse_event_id(i) for i in text.split())
        except InvalidEventError as e:
            self._say(str(e), "")
            return
        to = " ".join(map(format_event_id, ids)) or "the start"
        request = CursorRequest("reset", cursor.client, cursor.name, ids, self._writer or "")
        warning = "A connection that has it is closed."
        await self._change(request, f"{_title(cursor)} to {to}", warning)

    async def _change(self, request: CursorRequest, what: str, warning: str = "") -> None:
        do, at = request.do, self._watcher.config.name
        self._say("", "")
        question = f"{do.capitalize()} this on {texts.shown(at)}?"
        if not await parts.is_confirmed(question, f"{what}\n{warning}".strip(), do.capitalize()):
            return
        ids = [format_event_id(i) for i in request.ids]
        of = {"client": request.client, "cursor": request.name, "ids": ids}
        extra = {"user": self._writer, "gateway": at, **of}
        reason = await self._request(request)
        if reason is None:
            mlog.info(f"cursor {do}", extra=extra)
            self._say("", f"Done: {do} {what}")
        else:
            mlog.warning(f"no cursor {do}", extra={**extra, "reason": reason})
            self._say(reason, "")


def _key(cursor: CursorStatus) -> str:
    """What tells it from others, also where names are cut or escaped alike."""
    return msgspec.json.encode([cursor.client, cursor.name]).decode()


def _title(cursor: CursorStatus) -> str:
    return f"cursor {texts.shown(cursor.name)} of client {texts.shown(cursor.client)}"


_CURSORS: Columns[CursorStatus] = {
    "Cursor": lambda i: texts.shown(i.name),
    "Client": lambda i: texts.shown(i.client),
    "Behind": lambda i: texts.of_seconds(i.lag_s),
    "Events behind (up to 1,000)": lambda i: texts.of_number(i.lag_events),
    "Parked": lambda i: texts.of_number(i.n_parked),
    "Connected": lambda i: "yes" if i.is_connected else "no",
}

_CURSORS_OF_CLIENT: Columns[parts.MetricRow] = {
    "Client": lambda i: texts.shown(i.label),
    "Cursors": parts.metric("cursors", texts.of_number),
    "Furthest behind": parts.metric("cursor_lag_seconds", texts.of_seconds),
    "Events behind (up to 1,000)": parts.metric("cursor_lag_events", texts.of_number),
    "Parked": parts.metric("cursor_parked_events", texts.of_number),
    "Connected": parts.metric("cursors_connected", texts.of_number),
}
"""Of a gateway that tells nothing of single cursors."""


class _Parked(NamedTuple):
    """What is parked; ``event`` is None if it is not known."""

    info: ParkedInfo
    event: Event | None


def _detail(parked: _Parked) -> str:
    unknown = "The event is no longer stored, or this console may not see it."
    told = unknown if parked.event is None else texts.of_event(parked.event)
    return f"{told}\n\nparked: {texts.shown(parked.info.reason, 2_000)}"


_PARKED: Columns[_Parked] = {
    "Event": lambda i: format_event_id(i.info.id),
    "Parked (UTC)": lambda i: texts.of_moment(Timestamp.from_float(i.info.at)),
    "To be redelivered": lambda i: "yes" if i.info.is_due else "no",
    "Reason": lambda i: texts.shown(i.info.reason, 500),
    "Type": lambda i: texts.UNKNOWN if i.event is None else texts.of_type(i.event.type),
    "Payload": lambda i: texts.UNKNOWN if i.event is None else texts.of_payload(i.event.payload),
}
