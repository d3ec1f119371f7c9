"""Registering an event, which is asked twice, and kept in the log with the name of the user."""

import logging

import msgspec
from nicegui import ui

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import JsonPayload, RegisterEvent, check_registrable
from mariner.cli.values import parse_event_type
from mariner.errors import MarinerError
from mariner_console import limits, texts
from mariner_console.page.parts import card, failure, field, is_confirmed, note
from mariner_console.watcher import Watcher

mlog = logging.getLogger(__name__)


class RegisterPanel:
    """The panel."""

    def __init__(self, watcher: Watcher, user: str) -> None:
        self._watcher = watcher
        self._user = user
        with card("Register an event"):
            with ui.element("div").classes("console-form"):
                self._type = field("Type")
            self._payload = ui.textarea("Payload (JSON; empty: none)").props("outlined dense")
            self._payload.classes("full-width")
            ui.button("Register …", on_click=self._ask)
            self._failure = failure()
            self._done = ui.label("").classes("console-well").props("role=status")
            note("The gateway refuses what its client, this console, may not register.")

    async def refresh(self) -> None:
        """Nothing here changes by itself."""

    async def _ask(self) -> None:
        self._failure.set_text("")
        self._done.set_text("")
        try:
            event = _parse(self._type.value, self._payload.value)
        except InvalidEventError as e:
            self._failure.set_text(texts.shown(str(e)))
            return
        question = f"Register this on {texts.shown(self._watcher.config.name)}?"
        text = f"{texts.of_type(event.type)}\n{texts.unfolded(event.payload)}"
        if await is_confirmed(question, text, "Register"):
            await self._register(event)

    async def _register(self, event: RegisterEvent) -> None:
        at = self._watcher.config.name
        extra = {"user": self._user, "gateway": at, "event_type": texts.of_type(event.type)}
        try:
            registered = await self._watcher.register(event)
        except (MarinerError, TimeoutError) as e:
            reason = str(e) or "no answer in time: it may be registered all the same"
            mlog.warning("event not registered", extra={**extra, "reason": reason})
            self._failure.set_text(texts.shown(reason))
            return
        event_id = texts.of_id(registered.id)
        mlog.info("event registered", extra={**extra, "id": event_id})
        self._done.set_text(f"Registered as {event_id}.")


def _parse(event_type: str, payload: str) -> RegisterEvent:
    if len(event_type) + len(payload) > limits.MAX_INPUT_CHARACTERS:
        raise InvalidEventError("that is too long")
    parsed = parse_event_type(event_type)
    check_registrable(parsed)
    if not payload.strip():
        return RegisterEvent(parsed, None, None)
    try:
        data = msgspec.json.decode(payload, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise InvalidEventError(f"payload: expected JSON: {e}") from e
    return RegisterEvent(parsed, None, JsonPayload(data))
