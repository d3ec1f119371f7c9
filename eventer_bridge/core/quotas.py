"""Quotas: how much a client may use, with all its connections.

A quota is configured for each client (``quota`` of the client), and for those that have none of
their own (``quota`` of the gateway). The effect of an exceeded quota

* of connections and subscriptions: the connection is declined;
* of a rate (events, bytes, time of queries): the client is not read, and its queries do not
  begin, until its quota has recovered (``net.throttle``);
* of event types: the registration is refused (``backends.type_budget``);
* of rows: an answer ends early, and says that more follows.

An :class:`Account` counts the use of one client. Each configured client that connected has one, by
its name in the configuration, so that peers cannot create more.

Runs on the event loop's thread.
"""

import functools
import logging
import math
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.model import QueryLatestParams, QueryParams, QueryResult
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.stream import Stream
from eventer_bridge.net.throttle import BYTES, EVENTS, QUERIES, Throttle
from eventer_bridge.subscription import Subscription

audit = logging.getLogger("audit")

ROWS: Final = "max_query_rows"

Bound: TypeAlias = int | UnsetType | None

_RATES: Final = (EVENTS, BYTES, QUERIES)


class ClientQuota(msgspec.Struct, frozen=True):
    """How much a client may use; see ``schemas/gateway.yaml``. None: no bound of its own.

    What is not set is that of all clients, see :meth:`over`.
    """

    max_connections: Bound = UNSET
    max_subscriptions: Bound = UNSET
    max_event_types: Bound = UNSET
    max_query_rows: Bound = UNSET
    events_per_s: Bound = UNSET
    bytes_per_s: Bound = UNSET
    query_ms_per_s: Bound = UNSET

    def over(self, others: "ClientQuota") -> "ClientQuota":
        """This quota, with what is not set taken from another one."""
        unset = [i for i in self.__struct_fields__ if getattr(self, i) is UNSET]
        return replace(self, **{name: getattr(others, name) for name in unset})

    def get(self, name: str) -> int | None:
        """A bound by its name; None: there is none."""
        value = getattr(self, name)
        return None if value is UNSET else value

    @property
    def n_event_types(self) -> int:
        """Price of the event types that it may add (``backends.type_budget``)."""
        value = self.max_event_types
        if value is None:
            return limits.MAX_EVENT_TYPES
        return limits.MAX_CLIENT_EVENT_TYPES if value is UNSET else value

    @property
    def n_subscriptions(self) -> int | None:
        """Query types that its connections may subscribe to."""
        value = self.max_subscriptions
        return limits.MAX_CLIENT_SUBSCRIPTIONS if value is UNSET else value

    @property
    def bounds(self) -> dict[str, int]:
        """All bounds that there are, by name."""
        return {i: value for i in self.__struct_fields__ if (value := self.get(i)) is not None}


class QuotaHolder(Protocol):
    """A configured client, ``Rights``.

    Attributes:
        name: of the client.
        quota: of the client.
        type_quota: the part of it that is for event types.
    """

    name: str
    quota: ClientQuota
    type_quota: TypeQuota


class AccountMember(Protocol):
    """A connection of a client, ``ClientSession``.

    Attributes:
        wanted: what it subscribed to.
        n_subscriptions: query types in that.
    """

    wanted: Subscription
    n_subscriptions: int

    @property
    def stream(self) -> Stream[Any]:
        """Its connection."""


class Account:
    """What one client uses; see the module. Created by :class:`Accounts`.

    Attributes:
        name: of the client, as it is configured.
        types_owner: what it is called where types are paid for.
        quota: what it may use; see :meth:`use`.
        max_query_rows: of the quota.
        max_gathered: events of it that the core gets together: fewer if they are limited, so that
            others notice nothing when it goes on.
        members: its connections.
        throttle: its rates; None: it has none.
        n_registered: events that it registered so far.
        n_notified: events that it was notified of so far, counted on each connection.
        n_subscriptions: query types that its connections subscribe to.
        hits: how often it met its quota, by the names of the bounds.
    """

    def __init__(self, name: str, types_owner: str) -> None:
        self.name = name
        self.types_owner = types_owner
        self.quota = ClientQuota()
        self.max_query_rows: int | None = None
        self.max_gathered = limits.MAX_GATHERED_EVENTS
        self.members: set[AccountMember] = set()
        self.throttle: Throttle | None = None
        self.hits: Counter[str] = Counter()
        self.n_registered = self.n_notified = self.n_subscriptions = 0

    def use(self, quota: ClientQuota) -> None:
        """Replace the quota. Connections that are there already stay."""
        if quota == self.quota:
            return
        self.quota = quota
        self.max_query_rows = quota.get(ROWS)
        if (events_per_s := quota.get(EVENTS)) is None:
            self.max_gathered = limits.MAX_GATHERED_EVENTS
        else:
            soon = math.ceil(events_per_s * net_limits.MIN_HELD_S)
            self.max_gathered = min(soon, limits.MAX_GATHERED_EVENTS)
        rates = {name: value for name, value in quota.bounds.items() if name in _RATES}
        if self.throttle is not None:
            self.throttle.set_rates(rates)
        elif rates:
            self.throttle = Throttle(rates, self.hit)
            for member in self.members:
                self._count_bytes(member)

    def refusal(self, n_subscriptions: int) -> str | None:
        """Why it may not have one more connection with so many subscriptions; None: it may."""
        quota = self.quota
        for name, most, n_used, what in (
            ("max_connections", quota.get("max_connections"), len(self.members) + 1, "connections"),
            (
                "max_subscriptions",
                quota.n_subscriptions,
                self.n_subscriptions + n_subscriptions,
                "subscriptions",
            ),
        ):
            if most is not None and n_used > most:
                self.hit(name)
                return f"too many {what} of this client ({name}: {most})"
        return None

    def hit(self, name: str) -> None:
        """It met a bound of its quota."""
        self.hits[name] += 1
        audit.info("quota", extra={"client": self.name, "quota": name})

    def join(self, member: AccountMember) -> None:
        """A connection is the client's."""
        self.members.add(member)
        self.n_subscriptions += member.n_subscriptions
        if self.throttle is not None:
            self._count_bytes(member)
            self.throttle.check(member.stream)  # others of it may have sent too much

    def leave(self, member: AccountMember) -> None:
        """A connection is gone, or another client's."""
        self.members.discard(member)
        self.n_subscriptions -= member.n_subscriptions
        member.stream.bytes_in_cb = None
        if self.throttle is not None:
            self.throttle.forget(member.stream)

    def _count_bytes(self, member: AccountMember) -> None:
        member.stream.bytes_in_cb = functools.partial(self.spend, member.stream, BYTES)

    def spend(self, stream: Stream[Any], name: str, amount: float) -> None:
        """A connection used so much of a rate: hold it back if that was too much."""
        if self.throttle is not None:
            self.throttle.spend(name, amount)
            self.throttle.check(stream)


class Accounts:
    """The accounts of a server's clients."""

    def __init__(self) -> None:
        self._by_name: dict[str, Account] = {}

    def __iter__(self) -> Iterator[Account]:
        return iter(tuple(self._by_name.values()))

    def keep(self, names: Container[str]) -> None:
        """Forget clients that have no connection and are none of these."""
        self._by_name = {name: i for name, i in self._by_name.items() if i.members or name in names}

    def of(self, client: QuotaHolder) -> Account:
        """The account of a client, with its quota from now on."""
        account = self._by_name.get(client.name)
        if account is None:
            account = self._by_name[client.name] = Account(client.name, client.type_quota.owner)
        account.use(client.quota)
        return account


def limit_rows(params: QueryParams, most: int) -> QueryParams:
    """Limit the rows of a query; see :func:`first_rows` for queries without such a limit."""
    if isinstance(params, QueryLatestParams):
        return params
    n = params.max_results
    return params if n is not None and n <= most else replace(params, max_results=most)


def first_rows(result: QueryResult, most: int) -> QueryResult:
    """Limit the rows of an answer."""
    if len(result.events) <= most:
        return result
    return QueryResult(result.events[:most], more_follows=True)


def has_ended_early(requested: QueryParams, result: QueryResult, most: int) -> bool:
    """Whether the quota cut an answer short."""
    if not result.more_follows or len(result.events) < most:
        return False
    return isinstance(requested, QueryLatestParams) or requested.max_results != most
