"""The other servers of a group, as the Monitor Server lists them.

Their events are kept here: each is replicated while it is listed or connected, except for those
that the configuration already replicates, with a token or TLS of their own. A server that loses its
own connection to the Monitor Server is no longer listed, but may still be active; so its status
counts as well.

Before it becomes active, a server asks the others for its own events (:func:`regain`).

Belongs to the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec

from eventer_bridge import chatter
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ClosedError
from eventer_bridge.eventer import client
from eventer_bridge.eventer.client import EventerClient, EventsCb
from eventer_bridge.model import INT64_MAX, EventId, QueryServerParams, Status
from eventer_bridge.remote import limits
from eventer_bridge.remote.feed import Feed, FeedState
from eventer_bridge.remote.replication import Following, Replication
from eventer_bridge.resources import Resource, in_time, uncancellable

mlog = logging.getLogger(__name__)


class _EventerServer(msgspec.Struct):
    host: str
    port: Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)]


class ServerData(msgspec.Struct):
    """What a server publishes through the Monitor Server (as hat-event's servers do).

    ``eventer_server`` is an address for Eventer clients; None if it requires TLS, which Hat's
    components do not know. ``server_token`` is what clients must send; None: none.
    """

    server_id: Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
    eventer_server: _EventerServer | None
    server_token: str | None = None


def server_data(server_id: int, address: chatter.Address, token: str | None) -> dict[str, Any]:
    """:class:`ServerData` of this server, as JSON."""
    server = None if address.is_tls else _EventerServer(address.host, address.port)
    data: dict[str, Any] = msgspec.to_builtins(ServerData(server_id, server, token))
    return data


class _Found(NamedTuple):
    address: chatter.Address
    replication: Replication


class ServerGroup(Resource):
    """See the module.

    The other servers must have the same ``token``. ``replications`` are those of the configuration.
    """

    def __init__(
        self, engine: Engine, token: str | None, replications: Iterable[Replication]
    ) -> None:
        self._engine = engine
        self._token = token
        self._configured = {i.remote_id: i for i in replications}
        self._members: dict[int, Replication] = {}  # configured ones that belong to the group
        self._servers: dict[int, chatter.Address] = {}
        self._listed_members: set[int] = set()
        self._found: dict[int, _Found] = {}
        self._reasons: set[str] = set()
        self._servers_changed = asyncio.Event()
        self.status_changed = asyncio.Event()
        self.async_group.spawn(self._replicate_loop)

    @property
    def replications(self) -> list[Replication]:
        """Replications of the servers found, without those of the configuration."""
        return [found.replication for found in self._found.values()]

    @property
    def is_other_active(self) -> bool:
        """Whether another server is connected and not STANDBY."""
        return bool(self._active())

    def _active(self) -> list[Replication]:
        everyone = chain(self.replications, self._members.values())
        return [i for i in everyone if i.remote_status not in {None, Status.STANDBY}]

    async def wait_others_standby(self) -> None:
        """Wait while :attr:`is_other_active`; connections that are not answered are given up."""
        while active := self._active():
            self.status_changed.clear()
            await asyncio.gather(*(i.check_answers(limits.MEMBER_ANSWER_S) for i in active))
            await in_time(self.status_changed.wait(), limits.MEMBER_ANSWER_S)

    @property
    def listed(self) -> dict[int, Replication | None]:
        """The servers that the Monitor Server lists, and their replications; None: not yet."""
        known = {i: found.replication for i, found in self._found.items()} | self._members
        return {i: known.get(i) for i in self._servers.keys() | self._listed_members}

    async def wait_changed(self, until_s: float | None = None) -> None:
        """Wait until the other servers change, or until then, by the loop's time."""
        self.status_changed.clear()
        timeout_s = None if until_s is None else until_s - asyncio.get_running_loop().time()
        await in_time(self.status_changed.wait(), timeout_s)

    async def catch_up_with(self, server_ids: Iterable[int]) -> None:
        """Wait until everything is kept that these servers have; also for those that go away."""
        missing = {*server_ids}
        while missing := missing & {*self._behind(), *(missing - self.listed.keys())}:
            await self.wait_changed()
        await self._wait_delivered()

    async def catch_up(self, timeout_s: float) -> None:
        """Wait, up to a time, until all that the listed servers had stored before is kept."""
        try:
            async with asyncio.timeout(timeout_s):
                while behind := self._behind():
                    await self.wait_changed()
                await self._wait_delivered()
        except TimeoutError:
            mlog.warning("not all events of the group are here", extra={"servers": behind})

    async def _wait_delivered(self) -> None:
        for i in [*self.replications, *self._members.values()]:
            await i.wait_delivered()

    def _behind(self) -> list[int]:
        """The listed servers with which it has not caught up."""
        listed = self.listed.items()
        return sorted(i for i, found in listed if found is None or not found.is_caught_up)

    def update(self, servers: Iterable[Any]) -> None:
        """Take the list of the Monitor Server: data of each other component of the group."""
        listed: dict[int, chatter.Address] = {}
        reasons: set[str] = set()
        self._listed_members.clear()
        for data in servers:
            try:
                self._take(data, listed)
            except msgspec.ValidationError as e:
                reasons.add(str(e))
        for reason in reasons - self._reasons:
            mlog.warning("a server of the group is not replicated", extra={"reason": reason})
        self._reasons = reasons
        self._servers = listed
        self._servers_changed.set()
        self.status_changed.set()  # one that is not listed any more is not waited for

    def _take(self, data: Any, listed: dict[int, chatter.Address]) -> None:
        server = msgspec.convert(data, ServerData)
        server_id = server.server_id
        if server_id == self._engine.server_id:
            raise msgspec.ValidationError(f"server_id {server_id} is that of this server")
        if server_id in self._configured:
            self._listed_members.add(server_id)
            self._add_member(self._configured[server_id])
            return
        if server.eventer_server is None:
            raise msgspec.ValidationError(
                f"server {server_id} requires TLS: list it in replication"
            )
        if self._token is not None and server.server_token != self._token:
            raise msgspec.ValidationError(f"server {server_id} has another token")
        if len(listed) >= limits.MAX_GROUP_SERVERS:
            raise msgspec.ValidationError(f"more than {limits.MAX_GROUP_SERVERS} servers")
        listed[server_id] = chatter.Address(server.eventer_server.host, server.eventer_server.port)

    def _add_member(self, member: Replication) -> None:
        if member.remote_id not in self._members:
            self._members[member.remote_id] = member
            member.remote_status_cbs.register(self._on_remote_status)

    def _on_remote_status(self) -> None:
        self.status_changed.set()
        self._servers_changed.set()  # one that is not listed may have disconnected

    async def _replicate_loop(self) -> None:
        try:
            while True:
                await self._servers_changed.wait()
                self._servers_changed.clear()
                await self._replicate()
        finally:
            for found in self._found.values():
                await uncancellable(found.replication.async_close())

    async def _replicate(self) -> None:
        for server_id, found in tuple(self._found.items()):
            is_listed = self._servers.get(server_id) == found.address
            if not is_listed and found.replication.remote_status is None:
                await found.replication.async_close()
                del self._found[server_id]
        for server_id, address in self._servers.items():
            if server_id not in self._found:
                self._found[server_id] = _Found(address, self._create(server_id, address))
                self.status_changed.set()

    def _create(self, server_id: int, address: chatter.Address) -> Replication:
        mlog.info("server of the group", extra={"server": server_id, "address": str(address)})
        name = f"event/{self._engine.server_id}"
        connect = functools.partial(
            client.connect, address, name, client_token=self._token, keeps_bounds=True
        )
        created = Replication(self._engine, server_id, connect)
        created.remote_status_cbs.register(self._on_remote_status)
        return created


async def regain(
    engine: Engine, group: ServerGroup, timeout_s: float, *, accepts_loss: bool
) -> set[int]:
    """Get back what the listed servers have of this server's events, and it has not.

    A server whose store is new, was restored, or is an earlier copy (``Backend.is_whole``) does not
    know which ids it gave. The others have its events. So it first gets these back, and continues
    far above that, with another history: clients may have seen more than any server still has. It
    does not become active without an answer, unless its operator says so (``accepts_loss``: even
    without what cannot be had). A server whose store is whole asks as well, but waits ``timeout_s``
    only, as when a loss is accepted: the other one may be away.

    ``engine`` is STANDBY; its ``waits_for`` says what it waits for. Returns the servers that
    answered; ``EventerBridgeError``: the store failed.
    """
    needs_answer = not (engine.is_whole or accepts_loss)
    until_s = None if needs_answer else asyncio.get_running_loop().time() + timeout_s
    requests = _Requests(engine, group, until_s, accepts_loss)
    answered: set[int] = set()
    given_up: set[int] = set()
    while (left := group.listed.keys() - answered - given_up) or (needs_answer and not answered):
        if not left:
            requests.note_waiting("another server of the group")
            await group.wait_changed()
            continue
        server_id = min(left)
        if await requests.request(server_id):
            answered.add(server_id)
        elif server_id in group.listed:
            given_up.add(server_id)
    if accepts_loss and not answered and (given_up or not engine.is_whole):
        mlog.warning("this server goes on without what others may have, as its operator asked")
        await engine.begin_regaining()
    if engine.is_regaining:
        await engine.read_histories()
    return answered


class _Requests:
    """Requests to one server after the other.

    One that did not answer is given up at ``until_s``, by the loop's time (None: never); one whose
    events do not continue those here if the loss is accepted.
    """

    def __init__(
        self, engine: Engine, group: ServerGroup, until_s: float | None, accepts_loss: bool
    ) -> None:
        self._engine = engine
        self._group = group
        self._until_s = until_s
        self._accepts_loss = accepts_loss
        self._loop = asyncio.get_running_loop()

    @property
    def _is_over(self) -> bool:
        return self._until_s is not None and self._loop.time() >= self._until_s

    async def request(self, server_id: int) -> bool:
        """Request them from a server; False: it is given up, or is not listed any more."""
        while server_id in self._group.listed and not self._is_over:
            remote = self._group.listed[server_id]
            if remote is not None:
                async with _OwnEvents(self._engine, remote, self._group.status_changed.set) as own:
                    return await self._await_answer(server_id, own)
            await self._group.wait_changed(self._until_s)
        return False

    async def _await_answer(self, server_id: int, own: "_OwnEvents") -> bool:
        while server_id in self._group.listed and not own.is_done:
            if own.refusal is not None and self._accepts_loss:
                return False
            if own.refusal is not None:
                self._wait_for(
                    f"server {server_id} has events of this one that do not continue those here"
                    f" ({own.refusal}): start it with the store that they are of, with an empty"
                    " one, or with --accept-loss"
                )
            elif self._is_over:
                mlog.warning("server does not tell what it has", extra={"server": server_id})
                return False
            else:
                self.note_waiting(f"server {server_id}")
            await self._group.wait_changed(None if own.refusal else self._until_s)
        return own.is_done

    def note_waiting(self, who: str) -> None:
        """Note what it waits for."""
        if self._until_s is not None:
            self._engine.waits_for = f"it asks {who} what that has of its events"
            return
        self._wait_for(
            f"its store is new, was restored or copied: it waits for {who} to tell what that has of"
            " its events, or to be started with --accept-loss"
        )

    def _wait_for(self, reason: str) -> None:
        if reason != self._engine.waits_for:
            self._engine.waits_for = reason
            mlog.warning("this server does not become active", extra={"reason": reason})


class _OwnEvents(Resource):
    """Gets this server's events from another one; calls ``on_changed`` for each attribute.

    ``refusal`` is why its events do not continue those here; None: they do.
    """

    def __init__(self, engine: Engine, remote: Replication, on_changed: Callable[[], None]) -> None:
        self.is_done = False
        self.refusal: str | None = None
        self._engine = engine
        self._remote = remote
        self._on_changed = on_changed
        self._following = Following(engine, engine.server_id)
        self._feed = Feed(
            f"{remote.name}, for events of this one",
            self._connect,
            self._known,
            engine.replicate,
            server_id=engine.server_id,
            on_state=self._on_state,
            on_missing=engine.note_missing,
            on_left_out=engine.note_missing,
            give_way=engine.give_way,
        )
        self.async_group = self._feed.async_group

    async def _connect(self, on_events: EventsCb) -> EventerClient:
        return await self._remote.connect(persisted=True, on_events=on_events)

    async def _known(self, client: EventerClient) -> Mapping[int, EventId | None]:
        server_id = self._engine.server_id
        session_id, timestamp = self._engine.replicated(server_id)
        last = None if timestamp is None else EventId(server_id, session_id, INT64_MAX)
        params = QueryServerParams(server_id, persisted=True, max_results=1, last_event_id=last)
        if (await client.query(params)).events:
            self.refusal = await self._following.begin(client, session_id, timestamp)
            if self.refusal is not None:
                self._on_changed()
                await client.wait_closing()
                raise ClosedError(f"connection lost: {client.close_reason}")
            mlog.warning(
                "events of this server are not here, and come back from another one",
                extra={"server": self._remote.remote_id, "last_session": session_id},
            )
            await self._engine.begin_regaining()
        return {server_id: last}

    def _on_state(self, state: FeedState, n_events: int | None) -> None:
        if state is FeedState.SYNCED and not self.is_done:
            extra = {"server": self._remote.remote_id, "events": n_events}
            mlog.info("events of this server that another one has are here", extra=extra)
            self.is_done = True
            self._on_changed()
