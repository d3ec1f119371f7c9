"""Thresholds: a number in a JSON payload above a limit raises an alarm event.

Each threshold checks the number at ``path`` in the payloads of the events that it subscribes to,
each event type by itself. When the number is above ``limit``, it adds an event to the session, and
another one when it is back at or below ``limit - hysteresis``:

* type: ``alarm_prefix`` and the segments of the type of the event that caused it;
* source timestamp: that of the cause;
* payload: ``{"state": "RAISED" or "CLEARED", "value": …, "limit": …, "id": id of the cause}``.

Numbers are compared as they are written, not as the nearest binary ones: with a limit of 0.3 and
a hysteresis of 0.1, 0.2 clears. 1e999 is above any limit, and reported as it was written.

The alarm is stored together with its cause, or neither is. The state of an alarm is its latest
event in the store, also after a restart. Payloads without a number there, and alarms of the module
itself, are ignored.

Configuration::

    module: eventer_bridge.modules.threshold
    thresholds:
        - {subscriptions: [[plant, '?', temperature]], path: [value], limit: 80, hysteresis: 2}
"""

import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, Literal, TypeAlias

import msgspec
from hat import json
from typing_extensions import override

from eventer_bridge import limits, model
from eventer_bridge.core.paging import query_all
from eventer_bridge.errors import ModuleError
from eventer_bridge.modules.base import EVENT_TYPE, QUERY_TYPES, Module, ModuleEngine, ModuleSession
from eventer_bridge.modules.loading import ModuleConf
from eventer_bridge.modules.specialized import SpecializedModule
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

DEFAULT_ALARM_PREFIX: Final = ("alarm",)


class _Fraction(str):
    """A number with a fraction or an exponent, as it is written."""

    __slots__ = ()


_Number: TypeAlias = int | _Fraction

_decode: Final = msgspec.json.Decoder(float_hook=_Fraction).decode

_EXACT: Final = Context(prec=1_000)
"""Any two floats as they are written differ by fewer digits."""

_TINY: Final = "1E-999999999999999999"
"""The decimal nearest to zero."""

json_schema: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Thresholds",
    "type": "object",
    "required": ["module", "thresholds"],
    "additionalProperties": False,
    "properties": {
        "module": {"const": "eventer_bridge.modules.threshold"},
        "thresholds": {
            "description": "the thresholds",
            "type": "array",
            "minItems": 1,
            "maxItems": 1_000,
            "items": {
                "type": "object",
                "required": ["subscriptions", "limit"],
                "additionalProperties": False,
                "properties": {
                    "subscriptions": QUERY_TYPES,
                    "path": {
                        "description": "keys and indices that lead to the number in the"
                        " payload; default, the payload is the number",
                        "type": "array",
                        "maxItems": 32,
                        "items": {"type": ["string", "integer"]},
                    },
                    "limit": {"description": "numbers above it raise the alarm", "type": "number"},
                    "hysteresis": {
                        "description": "how far below the limit the alarm is cleared; default, 0",
                        "type": "number",
                        "minimum": 0,
                    },
                    "alarm_prefix": {
                        **EVENT_TYPE,
                        "description": "prefix of the types of alarm events; default, alarm",
                    },
                },
            },
        },
    },
}


async def create(conf: ModuleConf, engine: ModuleEngine) -> Module:
    """Create the module; ``ModuleError``: two thresholds would raise the same alarm.

    Raises ``InvalidSubscriptionError`` or ``StorageError``, too.
    """
    alarms = _Alarms(engine)
    source = engine.create_source()
    thresholds = [Threshold(i, engine, source, alarms) for i in conf["thresholds"]]
    for (i, first), (j, second) in itertools.combinations(enumerate(thresholds), 2):
        if not first.alarm_types.isdisjoint(second.alarm_types):
            raise ModuleError(
                f"thresholds[{i}] and thresholds[{j}] could raise the same alarm: expected"
                " different values of alarm_prefix"
            )
    await alarms.load_all(i.alarm_types for i in thresholds)
    return SpecializedModule("thresholds", thresholds)


class Threshold(Module):
    """One of the thresholds of a module, which share its source and its alarms."""

    def __init__(
        self, conf: ModuleConf, engine: ModuleEngine, source: model.Source, alarms: "_Alarms"
    ) -> None:
        self._path: list[json.Path] = list(conf.get("path", ()))
        self._limit: float = conf["limit"]
        self._raised_above = _setting(conf, "limit")
        self._cleared_up_to = _EXACT.subtract(self._raised_above, _setting(conf, "hysteresis"))
        self._prefix: model.EventType = tuple(conf.get("alarm_prefix", DEFAULT_ALARM_PREFIX))
        self._subscription = Subscription(map(tuple, conf["subscriptions"]))
        self._engine = engine
        self.source: Final = source
        self.alarms: Final = alarms

    @property
    @override
    def subscription(self) -> Subscription:
        return self._subscription

    @property
    def alarm_types(self) -> Subscription:
        """Types of the alarms that it can raise."""
        return Subscription([(*self._prefix, *i) for i in self._subscription.query_types])

    @override
    async def create_session(self) -> ModuleSession:
        return _Session(self)

    def alarm_type(self, event: model.ProcessEvent) -> model.EventType:
        """Type of the alarm that an event may raise."""
        return (*self._prefix, *event.type)

    def value(self, event: model.ProcessEvent) -> _Number | None:
        """The number in the payload of an event; None: there is none."""
        if not isinstance(event.payload, model.JsonPayload):
            return None
        try:
            value = json.get(_decode(event.payload.data), self._path)
        except (msgspec.DecodeError, RecursionError) as e:
            reason = str(e)
        else:
            if isinstance(value, int | _Fraction) and not isinstance(value, bool):
                return value
            reason = "no number at the path"
        mlog.debug(
            "event is ignored by a threshold",
            extra={"event_type": "/".join(event.type), "reason": reason},
        )
        return None

    def is_raised(self, value: _Number, was_raised: bool) -> bool:
        """State of the alarm after a number."""
        return _decimal(value) > (self._cleared_up_to if was_raised else self._raised_above)

    def alarm(
        self, cause: model.ProcessEvent, value: _Number, is_raised: bool
    ) -> model.ProcessEvent:
        """The alarm event of a new state."""
        payload = {
            "state": "RAISED" if is_raised else "CLEARED",
            "value": msgspec.Raw(str(value)),
            "limit": self._limit,
            "id": cause.id,
        }
        return self._engine.create_process_event(
            self.source,
            model.RegisterEvent(
                self.alarm_type(cause), cause.source_timestamp, model.JsonPayload.of(payload)
            ),
        )


def _setting(conf: ModuleConf, key: str) -> Decimal:
    value = conf.get(key, 0)
    if not math.isfinite(value):
        raise ModuleError(f"{key} {value}: expected a finite number")
    return Decimal(str(value))


def _decimal(number: _Number) -> Decimal:
    try:
        return Decimal(number)
    except InvalidOperation:  # its exponent has 19 digits or more
        mantissa, _, exponent = number.lower().partition("e")  # type: ignore[union-attr]
        sign = "-" if mantissa.startswith("-") else ""
        if not mantissa.strip("-0."):
            return Decimal(0)
        return Decimal(sign + (_TINY if exponent.startswith("-") else "Infinity"))


class _Session(ModuleSession):
    def __init__(self, threshold: Threshold) -> None:
        self._threshold = threshold
        self._changed: set[model.EventType] = set()

    @override
    async def process(self, events: Sequence[model.ProcessEvent]) -> Sequence[model.ProcessEvent]:
        threshold, alarms = self._threshold, self._threshold.alarms
        causes = [
            (event, value)
            for event in events
            if event.source != threshold.source and (value := threshold.value(event)) is not None
        ]
        await alarms.load({threshold.alarm_type(event) for event, _ in causes})
        added: list[model.ProcessEvent] = []
        for event, value in causes:
            alarm_type = threshold.alarm_type(event)
            was_raised = alarms.is_raised(alarm_type)
            is_raised = threshold.is_raised(value, was_raised)
            if is_raised != was_raised:
                added.append(threshold.alarm(event, value, is_raised))
                alarms.set(alarm_type, is_raised)
                self._changed.add(alarm_type)
        return added

    @override
    async def async_close(self, is_committed: bool) -> None:
        if not is_committed:
            self._threshold.alarms.forget(self._changed)


class _AlarmPayload(msgspec.Struct):
    state: Literal["RAISED", "CLEARED"]


class _Alarms:
    """Which alarms are raised, according to the store; kept in memory as far as they fit.

    Changes are noted while their session is processed, so that the next session sees
    them; if the session fails, they are forgotten, and read from the store again.
    """

    def __init__(self, engine: ModuleEngine) -> None:
        self._engine = engine
        self._states: dict[model.EventType, bool | None] = {}  # least recently used first
        self._is_complete = False  # an alarm that is not in it was never raised

    async def load_all(self, alarm_types: Iterable[Subscription]) -> None:
        """Read the states of all alarms that match, if they fit."""
        self._is_complete = True
        await self._query([i for subscription in alarm_types for i in subscription.query_types])

    async def load(self, alarm_types: Iterable[model.EventType]) -> None:
        """Make sure that states are known until the next await."""
        unknown = []
        for alarm_type in alarm_types:
            if alarm_type in self._states:
                self.set(alarm_type, self._states[alarm_type])  # used most recently
            if self._state(alarm_type) is None:
                unknown.append(alarm_type)
        if unknown:
            found = await self._query(unknown)
            for alarm_type in unknown:
                self.set(alarm_type, found.get(alarm_type, False))

    def is_raised(self, alarm_type: model.EventType) -> bool:
        """Whether an alarm is raised; call :meth:`load` before."""
        state = self._state(alarm_type)
        assert state is not None
        return state

    def set(self, alarm_type: model.EventType, state: bool | None) -> None:
        """Note a state."""
        self._states.pop(alarm_type, None)
        self._states[alarm_type] = state
        if len(self._states) > limits.MAX_ALARM_STATES:
            del self._states[next(iter(self._states))]
            self._is_complete = False

    def forget(self, alarm_types: Iterable[model.EventType]) -> None:
        """Forget these states: they are read from the store again."""
        for alarm_type in alarm_types:
            self.set(alarm_type, None)

    def _state(self, alarm_type: model.EventType) -> bool | None:
        return self._states.get(alarm_type, False if self._is_complete else None)

    async def _query(self, alarm_types: Sequence[model.EventType]) -> dict[model.EventType, bool]:
        """Note the states that the store has, and return them."""
        found: dict[model.EventType, bool] = {}
        size = limits.MAX_SUBSCRIPTION_TYPES
        for start in range(0, len(alarm_types), size):
            params = model.QueryLatestParams(alarm_types[start : start + size])
            events = query_all(self._engine.query, params, limits.MAX_ALARM_STATES + 1)
            found.update([(event.type, _says_raised(event)) async for event in events])
        for alarm_type, state in found.items():
            self.set(alarm_type, state)
        return found


def _says_raised(event: model.Event) -> bool:
    if not isinstance(event.payload, model.JsonPayload):
        return False
    try:
        return msgspec.json.decode(event.payload.data, type=_AlarmPayload).state == "RAISED"
    except msgspec.DecodeError:
        mlog.warning(
            "latest event of an alarm is not from this module",
            extra={"event_type": "/".join(event.type)},
        )
        return False
