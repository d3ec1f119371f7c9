"""What a client may do: who it is, what it may see, what it may register.

Configured by ``clients`` and ``schemas`` of the configuration. A client's
``subscriptions`` bound what it is notified of and what it can query; only types of its
``register_events`` may be registered, and where an entry names a ``schema_id``, its JSON
payload must satisfy that schema. If several entries match a type, all of their schemas
must be satisfied.
"""

import hmac
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from eventer_bridge import limits, payload_schemas
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.excerpts import cut, quoted_type
from eventer_bridge.model import EventType, RegisterEvent
from eventer_bridge.payload_schemas import PayloadSchema
from eventer_bridge.registrable import check_type
from eventer_bridge.remembered import Remembered, type_bytes
from eventer_bridge.slices import Steps, parts
from eventer_bridge.subscription import Subscription
from eventer_bridge.type_budget import TypeQuota

_DECLINED = "invalid client name or token"


class RegisterRule(msgspec.Struct, frozen=True):
    """What a client may register, and the schema of its payloads."""

    subscriptions: tuple[EventType, ...]
    schema_id: str | None = None


class ClientConfig(msgspec.Struct, frozen=True):
    """A client and its rights; ``max_event_types`` is its quota (``type_budget``)."""

    name: str
    token: str | None
    subscriptions: tuple[EventType, ...]
    register_events: tuple[RegisterRule, ...]
    certificate: str | None = None
    max_event_types: int = limits.MAX_CLIENT_EVENT_TYPES


class DeclinedError(Exception):
    """The client is not who it says it is; the text is for the client."""


class Rights:
    """Rights of one configured client."""

    def __init__(self, config: ClientConfig, schemas: Mapping[str, PayloadSchema]) -> None:
        self.name = config.name
        self.token = config.token
        self.certificate = config.certificate
        self.type_quota = TypeQuota(f"client {config.name}", config.max_event_types)
        self.subscription = Subscription(config.subscriptions)
        self._rules = [
            (
                Subscription(rule.subscriptions),
                schemas[rule.schema_id] if rule.schema_id is not None else None,
            )
            for rule in config.register_events
        ]
        # the engine refuses what nobody may register
        self._may_register_everything = all(i is None for _, i in self._rules) and any(
            rule.is_everything for rule, _ in self._rules
        )
        self._checks_by_type: Remembered[EventType, Sequence[PayloadSchema]] = Remembered()

    def refusal(self, register_events: Iterable[RegisterEvent], first_index: int = 0) -> str | None:
        """Why these events may not be registered, cut; None if they may.

        Args:
            register_events: some events of a request.
            first_index: place of the first one in it.
        """
        if self._may_register_everything:
            return None
        checks_by_type = self._checks_by_type.known
        for index, event in enumerate(register_events, first_index):
            try:
                schemas = checks_by_type[event.type]
            except KeyError:
                try:
                    schemas = self._checks(event.type)
                except InvalidEventError as e:
                    return f"register_events[{index}]: {cut(str(e))}"
            for schema in schemas:
                if reason := schema.refusal(event.payload):
                    return cut(f"register_events[{index}]: {quoted_type(event.type)}: {reason}")
        return None

    def refusal_in_steps(self, register_events: Sequence[RegisterEvent]) -> Steps[str | None]:
        """As :meth:`refusal`, of many events."""
        for part in parts(len(register_events)):
            reason = self.refusal(register_events[part], part.start)
            if reason is not None:
                return reason
            yield
        return None

    def _checks(self, event_type: EventType) -> Sequence[PayloadSchema]:
        """Schemas of a type's payloads. What is allowed is remembered, and nothing else.

        Raises:
            InvalidEventError: the type cannot be registered, or no rule allows it.
        """
        check_type(event_type)
        matching = [schema for rule, schema in self._rules if rule.matches(event_type)]
        if not matching:
            raise InvalidEventError(f"no right to register {quoted_type(event_type)}")
        checks = tuple(i for i in matching if i is not None)
        n_bytes = type_bytes(event_type) + sys.getsizeof(checks)
        self._checks_by_type.remember(event_type, checks, n_bytes)
        return checks


def everything(quota: TypeQuota) -> Rights:
    """Rights of all who may see and register everything, with one quota together."""
    all_types = (("*",),)
    rights = Rights(ClientConfig(quota.owner, None, all_types, (RegisterRule(all_types),)), {})
    rights.type_quota = quota
    return rights


class Authenticator:
    """Knows all configured clients."""

    def __init__(
        self, clients: Iterable[ClientConfig], schemas: Iterable[Mapping[str, Any]]
    ) -> None:
        by_id = payload_schemas.create(schemas)
        self._rights = {client.name: Rights(client, by_id) for client in clients}

    def authenticate(self, name: str, token: str | None, certificate: str | None) -> Rights:
        """Rights of the client that gives this name and token.

        Args:
            name: ``client_name`` of the ``init_req``.
            token: its ``client_token``.
            certificate: common name of the verified TLS client certificate, if there is one.

        Raises:
            DeclinedError: unknown name, wrong token or wrong certificate; all of them
                alike, and the token is compared in constant time.
        """
        rights = self._rights.get(name)
        expected = rights.token if rights else ""
        same = hmac.compare_digest(_token_bytes(token), _token_bytes(expected))
        if rights is None or not same:
            raise DeclinedError(_DECLINED)
        if rights.certificate is not None and rights.certificate != certificate:
            raise DeclinedError(_DECLINED)
        return rights


def _token_bytes(token: str | None) -> bytes:
    # told apart by a first byte: no token is not the same as an empty token
    return b"0" if token is None else b"1" + token.encode()
