"""Cursors of clients, those that are furthest behind first, and the events that they parked.

Changes go over the control socket, as those of ``mariner cursors``. They are asked twice, and kept
with the name of the user in the log, and in the audit trail of the gateway.
"""

import logging
from typing import Literal

import msgspec
from nicegui import ui

from eventer_bridge.errors import ConfigurationError, ControlError, InvalidEventError
from eventer_bridge.model import EventId, Timestamp
from mariner.cli.values import parse_event_id
from mariner.gateway.cursor_requests import CursorRequest, ParkedInfo
from mariner.gateway.status import CursorStatus
from mariner_console import limits, texts
from mariner_console.metrics import Scrape
from mariner_console.page.parts import TextTable, card, failure, field, is_confirmed, note
from mariner_console.watcher import Watcher

mlog = logging.getLogger(__name__)

_COLUMNS = {
    "cursor": "Cursor", "client": "Client", "behind": "Behind",
    "events": "Events behind (up to 1,000)", "parked": "Parked", "connected": "Connected",
}  # fmt: skip

_CLIENT_COLUMNS = {
    "client": "Client", "cursors": "Cursors", "behind": "Furthest behind",
    "events": "Events behind (up to 1,000)", "parked": "Parked", "connected": "Connected",
}  # fmt: skip
"""Of a gateway that tells nothing of single cursors."""

_PARKED_COLUMNS = {
    "id": "Event", "at": "Parked (UTC)", "due": "To be redelivered", "reason": "Reason",
}  # fmt: skip


class CursorsPanel:
    """The panel.

    Args:
        watcher: of the gateway.
        writer: the user, who may change cursors; None: they may not.
    """

    def __init__(self, watcher: Watcher, writer: str | None) -> None:
        self._watcher = watcher
        self._writer = writer
        self._found: dict[str, CursorStatus] = {}
        self._picked: CursorStatus | None = None
        self._parked: list[ParkedInfo] = []
        self._picked_event: EventId | None = None
        is_local = watcher.config.control is not None
        with card("Cursors, those furthest behind first"):
            on_pick = self._pick if is_local else None
            columns, key = (_COLUMNS, "key") if is_local else (_CLIENT_COLUMNS, "client")
            self._table = TextTable(columns, key=key, empty="There is none.", on_pick=on_pick)
            self._failure = failure()
            if not is_local:
                note(
                    "Single cursors, and the events that they parked, are seen and reset only over"
                    " the control socket of a gateway on this machine: 'control' of this gateway in"
                    " the configuration of the console."
                )
                return
        with card("The cursor that is picked") as self._card:
            self._name = note("")
            self._events = TextTable(
                _PARKED_COLUMNS, key="id", empty="It parked none.", on_pick=self._pick_event
            )
            if writer is not None:
                self._make_form()
            self._refusal = failure()
            self._done = ui.label("").classes("console-well").props("role=status")
        self._card.set_visibility(False)

    def _make_form(self) -> None:
        with ui.element("div").classes("console-form"):
            ui.button("Redeliver …", on_click=lambda: self._change_parked("redeliver"))
            ui.button("Drop …", on_click=lambda: self._change_parked("drop")).props("outline")
            note("The event that is picked, or all that are parked.")
        with ui.element("div").classes("console-form"):
            self._behind = field("Go on behind (SERVER/SESSION/INSTANCE …; empty: the start)")
            ui.button("Reset …", on_click=self._reset).props("outline")

    async def refresh(self) -> None:
        """Show how far they are now."""
        if self._watcher.config.control is None:
            scrape = self._watcher.view.scrape
            self._table.set([] if scrape is None else _client_rows(scrape))
            return
        try:
            found = (await self._watcher.status()).cursors
        except (ConfigurationError, ControlError) as e:
            self._failure.set_text(texts.shown(str(e), 400))
            return
        self._failure.set_text("")
        self._found = {_key(i): i for i in found}
        self._table.set([_row(key, i) for key, i in self._found.items()])
        if self._picked is None:
            return
        before, self._picked = self._picked, self._found.get(_key(self._picked))
        if self._picked is None:
            self._card.set_visibility(False)
        elif self._picked.n_parked != before.n_parked:
            await self._look(self._picked)

    async def _pick(self, key: str | None) -> None:
        self._picked = self._found.get(key or "")
        self._card.set_visibility(self._picked is not None)
        self._say("", "")
        self._show([])
        if self._picked is not None:
            self._name.set_text(_title(self._picked))
            await self._look(self._picked)

    async def _look(self, cursor: CursorStatus) -> None:
        """Show what a cursor parked."""
        reason = await self._ask(CursorRequest("show", cursor.client, cursor.name))
        if reason is not None:
            self._say(reason, "")

    async def _ask(self, request: CursorRequest) -> str | None:
        """Ask for something, and show what is parked then; returns why not."""
        try:
            answer = await self._watcher.ask_cursors(request)
        except (ConfigurationError, ControlError) as e:
            return str(e)
        at = self._picked
        if at is not None and (at.client, at.name) == (request.client, request.name):
            self._show(answer.parked)
        return None

    def _show(self, parked: list[ParkedInfo]) -> None:
        self._parked = parked
        self._events.set([_parked_row(i) for i in parked])
        if self._picked_event not in {i.id for i in parked}:
            self._picked_event = None

    def _say(self, refusal: str, done: str) -> None:
        self._refusal.set_text(texts.shown(refusal, 400))
        self._done.set_text(done)

    def _pick_event(self, text: str | None) -> None:
        ids = (i.id for i in self._parked)
        self._picked_event = next((i for i in ids if texts.of_id(i) == text), None)

    # --- changes --------------------------------------------------------------------------

    async def _change_parked(self, do: Literal["redeliver", "drop"]) -> None:
        cursor, event_id = self._picked, self._picked_event
        if cursor is None:
            return
        if not self._parked:
            self._say("It parked none.", "")
            return
        what = "all parked events" if event_id is None else texts.of_id(event_id)
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
        to = " ".join(map(texts.of_id, ids)) or "the start"
        request = CursorRequest("reset", cursor.client, cursor.name, ids, self._writer or "")
        warning = "A connection that has it is closed."
        await self._change(request, f"{_title(cursor)} to {to}", warning)

    async def _change(self, request: CursorRequest, what: str, warning: str = "") -> None:
        do, at = request.do, self._watcher.config.name
        self._say("", "")
        question = f"{do.capitalize()} this on {texts.shown(at)}?"
        if not await is_confirmed(question, f"{what}\n{warning}".strip(), do.capitalize()):
            return
        ids = [texts.of_id(i) for i in request.ids]
        of = {"client": request.client, "cursor": request.name, "ids": ids}
        extra = {"user": self._writer, "gateway": at, **of}
        reason = await self._ask(request)
        if reason is None:
            mlog.info(f"cursor {do}", extra=extra)
            self._say("", f"Done: {do} {what}")
        else:
            mlog.warning(f"no cursor {do}", extra={**extra, "reason": reason})
            self._say(reason, "")


def _client_rows(scrape: Scrape) -> list[dict[str, str]]:
    """What the metrics tell of the cursors of each client."""
    lag_s, *others = (
        scrape.by(f"mariner_{name}", "client")
        for name in (
            "cursor_lag_seconds",
            "cursors",
            "cursor_lag_events",
            "cursor_parked_events",
            "cursors_connected",
        )
    )
    names = ("cursors", "events", "parked", "connected")
    return [
        {
            "client": texts.shown(client),
            "behind": texts.of_seconds(seconds),
            **{
                name: texts.of_number(int(values.get(client, 0)))
                for name, values in zip(names, others, strict=True)
            },
        }
        for client, seconds in sorted(lag_s.items(), key=lambda i: -i[1])
    ]


def _key(cursor: CursorStatus) -> str:
    """What tells it from others, also where names are cut or escaped alike."""
    return msgspec.json.encode([cursor.client, cursor.name]).decode()


def _title(cursor: CursorStatus) -> str:
    return f"cursor {texts.shown(cursor.name)} of client {texts.shown(cursor.client)}"


def _row(key: str, cursor: CursorStatus) -> dict[str, str]:
    return {
        "key": key,
        "cursor": texts.shown(cursor.name),
        "client": texts.shown(cursor.client),
        "behind": texts.of_seconds(cursor.lag_s),
        "events": texts.of_number(cursor.lag_events),
        "parked": texts.of_number(cursor.n_parked),
        "connected": "yes" if cursor.is_connected else "no",
    }


def _parked_row(parked: ParkedInfo) -> dict[str, str]:
    return {
        "id": texts.of_id(parked.id),
        "at": texts.of_moment(Timestamp.from_float(parked.at)),
        "due": "yes" if parked.is_due else "no",
        "reason": texts.shown(parked.reason, 500),
    }
