"""Conditions that payloads must satisfy to be stored. Belongs to the event loop's thread."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from hat import json

from eventer_bridge.errors import ConditionError
from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.model import EventType, JsonPayload, Payload, ProcessEvent, RegisterEvent
from eventer_bridge.subscription import Subscription

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "string": (str,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


class Conditions:
    """Conditions that payloads must satisfy to be stored.

    The configuration is that of hat-event's backend: for a subscription, ``all`` or ``any`` of
    several conditions, or ``json``: the payload is JSON, and its value at ``data_path`` has the
    type ``data_type`` and equals ``data_value``, each if given. An event whose type matches several
    subscriptions must satisfy all their conditions. hat-event silently drops other events; here,
    their registration fails with the violated condition.

    Only payloads of events with a condition are decoded. ``schemas/gateway.yaml`` describes the
    configuration (``event_core.backend.conditions``).
    """

    def __init__(self, confs: Iterable[Mapping[str, Any]]) -> None:
        self._conditions = [
            (index, Subscription(tuple(map(tuple, conf["subscriptions"]))), conf["condition"])
            for index, conf in enumerate(confs)
        ]
        self._by_type: BoundedCache[EventType, list[tuple[int, Mapping[str, Any]]]] = BoundedCache()

    def check(self, events: Iterable[RegisterEvent | ProcessEvent]) -> None:
        """Raise ``ConditionError``, which names event and reason, if a condition does not hold."""
        for number, event in enumerate(events, 1):
            conditions = self._of_type(event.type)
            if not conditions:
                continue
            value = _Value(event.payload)
            for index, condition in conditions:
                reason = _problem(condition, value)
                if reason is not None:
                    raise ConditionError(
                        f"event {number} ({'/'.join(event.type)}) fails conditions[{index}]:"
                        f" {reason}"
                    )

    def _of_type(self, event_type: EventType) -> list[tuple[int, Mapping[str, Any]]]:
        found = self._by_type.known.get(event_type)
        if found is None:
            found = [
                (index, condition)
                for index, subscription, condition in self._conditions
                if subscription.matches(event_type)
            ]
            n_bytes = type_bytes(event_type) + sys.getsizeof(found)
            self._by_type.put(event_type, found, n_bytes)
        return found


class _Value:
    """The payload of an event, decoded once, if it is JSON."""

    def __init__(self, payload: Payload | None) -> None:
        self.is_json = False
        self.data: Any = None
        if isinstance(payload, JsonPayload):
            try:
                self.data = payload.value()
                self.is_json = True
            except (msgspec.DecodeError, RecursionError):
                pass  # counts as not JSON here


def _problem(condition: Mapping[str, Any], value: _Value) -> str | None:
    """The reason why a condition does not hold; None if it holds."""
    match condition["type"]:
        case "all":
            problems = (_problem(i, value) for i in condition["conditions"])
            return next((i for i in problems if i is not None), None)
        case "any":
            reasons: list[str] = []
            for i in condition["conditions"]:
                reason = _problem(i, value)
                if reason is None:
                    return None
                reasons.append(reason)
            return " and ".join(reasons) or "expected any of no conditions"
        case _:
            return _json_problem(condition, value)


def _json_problem(condition: Mapping[str, Any], value: _Value) -> str | None:
    if not value.is_json:
        return "expected a JSON payload"
    path = condition.get("data_path", [])
    if not isinstance(path, list):
        path = [path]
    data = json.get(value.data, path)
    where = "/".join(map(str, path)) or "the payload"
    name = condition.get("data_type")
    if name is not None and (
        not isinstance(data, _TYPES[name]) or (name == "number" and isinstance(data, bool))
    ):
        return f"{where}: expected {name}"
    if "data_value" in condition and not _equal(condition["data_value"], data):
        return f"{where}: expected {msgspec.json.encode(condition['data_value']).decode()}"
    return None


def _equal(expected: Any, data: Any) -> bool:
    # Python holds True == 1, JSON does not
    if isinstance(expected, bool) or isinstance(data, bool):
        return expected is data
    if isinstance(expected, list) and isinstance(data, list):
        return len(expected) == len(data) and all(map(_equal, expected, data))
    if isinstance(expected, dict) and isinstance(data, dict):
        return expected.keys() == data.keys() and all(
            _equal(i, data[key]) for key, i in expected.items()
        )
    return bool(expected == data)
