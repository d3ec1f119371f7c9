"""Audit: who registered what.

To each session with events that match ``subscriptions``, it adds one event, stored with them:

* type: ``event_type``;
* payload: ``{"source_type": "CONNECTION", "MODULE" or "ENGINE", "source_id": …, "client": its
  name or null, "events": how many, "types": [{"type": […], "events": …}, …], "other_events":
  how many have types that are not listed}``.

It counts the events of the registration, not those that modules add to it; events that a module
registers in a session of its own count as that module's. Source ids are unique for one execution of
the server.

The audit learns the client's name from the event of the connection
(``event/<server id>/eventer/<name>``, registered before anything that the client registers) and
forgets it when the connection ends. A client with the right to register such events could end its
name early: do not grant it.

Configuration::

    module: eventer_bridge.modules.audit
    subscriptions: [[plant, '*']]
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from typing_extensions import override

from eventer_bridge import limits, model
from eventer_bridge.modules.base import EVENT_TYPE, QUERY_TYPES, Module, ModuleEngine, ModuleSession
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.subscription import Subscription

DEFAULT_EVENT_TYPE: Final = ("audit",)
DEFAULT_MAX_TYPES: Final = 100

json_schema: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Audit",
    "type": "object",
    "required": ["module"],
    "additionalProperties": False,
    "properties": {
        "module": {"const": "eventer_bridge.modules.audit"},
        "subscriptions": {
            **QUERY_TYPES,
            "description": "query types of the events to audit; default, all",
        },
        "event_type": {**EVENT_TYPE, "description": "type of the audit events; default, audit"},
        "max_types": {
            "description": f"most types that an audit event lists; default, {DEFAULT_MAX_TYPES}",
            "type": "integer",
            "minimum": 1,
            "maximum": 1_000,
        },
    },
}


async def create(conf: ModuleConf, engine: ModuleEngine) -> Module:
    """Create the module; ``InvalidSubscriptionError``: a subscription is wrong."""
    return Audit(conf, engine)


class Audit(Module):
    """See the module."""

    def __init__(self, conf: ModuleConf, engine: ModuleEngine) -> None:
        self._wanted = Subscription(map(tuple, conf.get("subscriptions", [["*"]])))
        self._connection_types = Subscription([("event", str(engine.server_id), "eventer", "?")])
        self._subscription = self._wanted.union(self._connection_types)
        self._event_type: model.EventType = tuple(conf.get("event_type", DEFAULT_EVENT_TYPE))
        self._max_types: int = conf.get("max_types", DEFAULT_MAX_TYPES)
        self._engine = engine
        self._source = engine.create_source()
        self._clients: dict[int, str] = {}  # by id of the connection

    @property
    @override
    def subscription(self) -> Subscription:
        return self._subscription

    @override
    async def create_session(self) -> ModuleSession:
        return _Session(self)

    def audit(self, events: Sequence[model.ProcessEvent]) -> model.ProcessEvent | None:
        """The audit event of events of one source, which may begin or end its connection."""
        source = events[0].source
        states = self._connection_states(events)
        for name, state in states:
            if state == "CONNECTED":
                self._remember(source.id, name)
        event = self._event(source, Counter([i.type for i in events if self._is_wanted(i)]))
        if any(i == (self._clients.get(source.id), "DISCONNECTED") for i in states):
            del self._clients[source.id]
        return event

    def _is_wanted(self, event: model.ProcessEvent) -> bool:
        return event.source != self._source and self._wanted.matches(event.type)

    def _connection_states(self, events: Sequence[model.ProcessEvent]) -> list[tuple[str, str]]:
        """Names and states of clients, from the events of connections."""
        return [
            (i.type[-1], state)
            for i in events
            if i.source.type is model.SourceType.CONNECTION
            and self._connection_types.matches(i.type)
            and (state := _text(i)) is not None
        ]

    def _remember(self, connection: int, name: str) -> None:
        self._clients.setdefault(connection, name)  # the first one is by the server
        if len(self._clients) > limits.MAX_AUDITED_CONNECTIONS:
            del self._clients[next(iter(self._clients))]

    def _event(
        self, source: model.Source, counts: Counter[model.EventType]
    ) -> model.ProcessEvent | None:
        if not counts:
            return None
        listed = counts.most_common(self._max_types)
        is_connection = source.type is model.SourceType.CONNECTION
        payload = {
            "source_type": source.type.value,
            "source_id": source.id,
            "client": self._clients.get(source.id) if is_connection else None,
            "events": counts.total(),
            "types": [{"type": i, "events": count} for i, count in listed],
            "other_events": counts.total() - sum(count for _, count in listed),
        }
        event = model.RegisterEvent(self._event_type, None, model.JsonPayload.of(payload))
        return self._engine.create_process_event(self._source, event)


class _Session(ModuleSession):
    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._is_done = False

    @override
    async def process(self, events: Sequence[model.ProcessEvent]) -> Sequence[model.ProcessEvent]:
        if self._is_done:
            return []
        source = events[0].source
        event = self._audit.audit([i for i in events if i.source == source])
        if event is None:
            return []
        self._is_done = True
        return [event]


def _text(event: model.ProcessEvent) -> str | None:
    """The payload, if it is a JSON string."""
    if not isinstance(event.payload, model.JsonPayload):
        return None
    try:
        return msgspec.json.decode(event.payload.data, type=str)
    except msgspec.DecodeError:
        return None
