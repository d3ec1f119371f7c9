"""Rights of clients.

Configured by ``clients`` and ``schemas`` of the configuration. A client's ``subscriptions``
limit its notifications and queries; it may register only types of its ``register_events``, with
a JSON payload that satisfies the entry's ``schema_id``, if given. If several entries match a
type, all of their schemas apply.
"""

import sys
from collections.abc import Iterable, Sequence

import msgspec
from typing_extensions import override

from eventer_bridge import limits, slices
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core import tokens
from eventer_bridge.core.payload_schemas import (
    Check,
    PayloadSchema,
    PayloadSchemas,
    SchemaCheckError,
)
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.core.tokens import TokenConfig, without_token
from eventer_bridge.core.validation import check_length, check_type
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.model import EventType, JsonPayload, RegisterEvent, cut, quoted_type
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps, parts
from eventer_bridge.subscription import Subscription
from eventer_bridge.tls import certificate_name


class RegisterRule(msgspec.Struct, frozen=True):
    """Event types that a client may register, and the schema of their payloads."""

    subscriptions: tuple[EventType, ...]
    schema_id: str | None = None


class ClientConfig(msgspec.Struct, frozen=True):
    """A client, its rights and its quota."""

    name: str
    token: TokenConfig
    subscriptions: tuple[EventType, ...]
    register_events: tuple[RegisterRule, ...]
    certificate: str | None = None
    quota: ClientQuota = ClientQuota()

    @override
    def __repr__(self) -> str:
        return without_token(self, "token")


class Rights:
    """Rights of one configured client, and what it has to present for them.

    ``ConfigurationError``: one of its tokens cannot be read.

    Attributes:
        tokens: of which it must present one; empty: it must present none.
        certificate: name that its certificate must have (``tls.certificate_name``); None: any.
        type_quota: the part of its quota that is for new event types.
        subscription: what it may be notified of and query.
        may_register_everything: whether :meth:`refusal` is always None, and need not be called.
        has_schemas: whether payloads are to satisfy some.
        inline_bytes: size above which a registration needs :meth:`refusal_of_large`.
        is_shared: whether clients have them who are told by their addresses only.
    """

    def __init__(self, config: ClientConfig, schemas: PayloadSchemas) -> None:
        self.name = config.name
        self.tokens = tokens.read(config.token, f"client {config.name!r}: token")
        self.certificate = (
            None if config.certificate is None else certificate_name(config.certificate)
        )
        self.quota = config.quota
        self.type_quota = TypeQuota(f"client {config.name}", config.quota.n_event_types)
        self.subscription = Subscription(config.subscriptions)
        self._rules = [
            (
                Subscription(rule.subscriptions),
                schemas.by_id[rule.schema_id] if rule.schema_id is not None else None,
            )
            for rule in config.register_events
        ]
        self._schemas = schemas
        self.has_schemas = any(schema is not None for _, schema in self._rules)
        self.is_shared = False
        self.inline_bytes = limits.INLINE_SCHEMA_BYTES if self.has_schemas else sys.maxsize
        # the engine refuses events that nobody may register
        self.may_register_everything = not self.has_schemas and any(
            rule.is_everything for rule, _ in self._rules
        )
        self._checks_by_type: BoundedCache[EventType, Sequence[PayloadSchema]] = BoundedCache()

    def refusal(self, register_events: Iterable[RegisterEvent]) -> str | None:
        """The reason why these events may not be registered, cut; None if they may."""
        if self.may_register_everything:
            return None
        if isinstance(register_events, Batch) and self.n_allowed([register_events]):
            return None
        checks_by_type = self._checks_by_type.known
        for index, event in enumerate(register_events):
            try:
                schemas = checks_by_type[event.type]
            except KeyError:
                try:
                    schemas = self._checks(event.type)
                except InvalidEventError as e:
                    return f"register_events[{index}]: {cut(str(e))}"
            for schema in schemas:
                if reason := schema.refusal(event.payload):
                    return _wrong_payload(index, event.type, reason)
        return None

    def n_allowed(self, batches: Sequence[Batch]) -> int:
        """How many of these, from the first on, :meth:`refusal` is known not to refuse."""
        if self.may_register_everything:
            return len(batches)
        known = self._checks_by_type.known
        for n, batch in enumerate(batches):
            if any(known.get(i) != () for i in batch.types):  # checked, refused, or not known
                return n
        return len(batches)

    async def refusal_of_large(self, register_events: Sequence[RegisterEvent]) -> str | None:
        """As :meth:`refusal`, in slices. Schemas come last; another process checks them."""
        checks: list[Check] = []
        indexes: list[int] = []
        reason = await slices.run(self._prepare_checks(register_events, checks, indexes))
        if reason is not None or not checks:
            return reason
        try:
            refused = await self._schemas.first_refused(checks)
        except SchemaCheckError as e:
            return cut(str(e))
        if refused is None:
            return None
        index = indexes[refused[0]]
        return _wrong_payload(index, register_events[index].type, refused[1])

    def _prepare_checks(
        self, register_events: Sequence[RegisterEvent], checks: list[Check], indexes: list[int]
    ) -> Steps[str | None]:
        """Collect the schema checks; returns a reason for refusing without them, or None.

        Payloads and their schemas go to ``checks``, positions of their events to ``indexes``.
        """
        for part in parts(len(register_events)):
            for index, event in enumerate(register_events[part], part.start):
                try:
                    check_length(event.type)
                    if self.may_register_everything:
                        continue
                    schemas = self._checks_by_type.known.get(event.type)
                    if schemas is None:
                        schemas = self._checks(event.type)
                        yield
                except InvalidEventError as e:
                    return f"register_events[{index}]: {cut(str(e))}"
                if not schemas:
                    continue
                if not isinstance(event.payload, JsonPayload):
                    reason = schemas[0].refusal(event.payload)
                    assert reason is not None
                    return _wrong_payload(index, event.type, reason)
                checks.append(([schema.id for schema in schemas], memoryview(event.payload.data)))
                indexes.append(index)
            yield
        return None

    def _checks(self, event_type: EventType) -> Sequence[PayloadSchema]:
        """Schemas of a type's payloads, or ``InvalidEventError``. Only allowed types are cached."""
        check_type(event_type)
        matching = [schema for rule, schema in self._rules if rule.matches(event_type)]
        if not matching:
            raise InvalidEventError(f"no right to register {quoted_type(event_type)}")
        checks = tuple(i for i in matching if i is not None)
        n_bytes = type_bytes(event_type) + sys.getsizeof(checks)
        self._checks_by_type.put(event_type, checks, n_bytes)
        return checks


def _wrong_payload(index: int, event_type: EventType, reason: str) -> str:
    return cut(f"register_events[{index}]: {quoted_type(event_type)}: {reason}")


def everything(owner: str, quota: ClientQuota, token: TokenConfig = None) -> Rights:
    """Rights to see and register everything; all holders share one quota, and a name."""
    all_types = (("*",),)
    config = ClientConfig(owner, token, all_types, (RegisterRule(all_types),), quota=quota)
    rights = Rights(config, PayloadSchemas())
    rights.type_quota = TypeQuota(owner, quota.n_event_types)
    rights.is_shared = True
    return rights
