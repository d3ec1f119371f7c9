"""The other servers of a group, as the Monitor Server lists them.

Their events are kept here: each is replicated while it is listed or connected, except for those
that the configuration already replicates, with a token or TLS of their own. A server that loses
its own connection to the Monitor Server is no longer listed, but may still be active; so its
status counts as well.

Belongs to the event loop's thread.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
from hat import aio

from eventer_bridge import chatter
from eventer_bridge.core.engine import Engine
from eventer_bridge.eventer import client
from eventer_bridge.model import INT64_MAX, Status
from eventer_bridge.remote import limits, replication
from eventer_bridge.remote.replication import Replication

mlog = logging.getLogger(__name__)


class _EventerServer(msgspec.Struct):
    host: str
    port: Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)]


class ServerData(msgspec.Struct):
    """What a server publishes through the Monitor Server (as hat-event's servers do).

    Attributes:
        server_id: identifier of the server.
        eventer_server: address for Eventer clients; None if it requires TLS, which Hat's
            components do not know.
        server_token: the token that clients must send; None: none.
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


class ServerGroup(aio.Resource):
    """See the module.

    Args:
        engine: keeps the events.
        token: of this server; the others must have the same.
        replications: those of the configuration.
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
        self._status_changed = asyncio.Event()
        self._async_group = aio.Group()
        self._async_group.spawn(self._replicate_loop)

    @property
    def async_group(self) -> aio.Group:
        """Group of tasks."""
        return self._async_group

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
            self._status_changed.clear()
            await asyncio.gather(*(i.check_answers(limits.MEMBER_ANSWER_S) for i in active))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.MEMBER_ANSWER_S):
                    await self._status_changed.wait()

    @property
    def listed(self) -> dict[int, Replication | None]:
        """The servers that the Monitor Server lists, and their replications; None: not yet."""
        known = {i: found.replication for i, found in self._found.items()} | self._members
        return {i: known.get(i) for i in self._servers.keys() | self._listed_members}

    async def wait_changed(self, until_s: float | None = None) -> None:
        """Wait until what is known of the others changes; or until then, by the loop's time."""
        self._status_changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._status_changed.wait()

    def note_changed(self) -> None:
        """Something of what is known of the others changed."""
        self._status_changed.set()

    async def catch_up_with(self, server_ids: Iterable[int]) -> None:
        """Wait until everything is kept that these servers have; also for those that go away."""
        missing = {*server_ids}
        while missing := missing & {*self._behind(), *(missing - self.listed.keys())}:
            await self.wait_changed()
        await self._wait_delivered()

    async def catch_up(self, timeout_s: float) -> None:
        """Wait until everything is kept that the listed servers had stored before this call.

        Args:
            timeout_s: how long at most.
        """
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
        """Take the current list of the Monitor Server.

        Args:
            servers: JSON data of each other component of the group.
        """
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
        self.note_changed()  # one that is not listed any more is not waited for

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
            member.register_remote_status_cb(self._on_remote_status)

    def _on_remote_status(self) -> None:
        self.note_changed()
        self._servers_changed.set()  # one that is not listed may have disconnected

    async def _replicate_loop(self) -> None:
        try:
            while True:
                await self._servers_changed.wait()
                self._servers_changed.clear()
                await self._replicate()
        finally:
            for found in self._found.values():
                await aio.uncancellable(found.replication.async_close())

    async def _replicate(self) -> None:
        for server_id, found in tuple(self._found.items()):
            is_listed = self._servers.get(server_id) == found.address
            if not is_listed and found.replication.remote_status is None:
                await found.replication.async_close()
                del self._found[server_id]
        for server_id, address in self._servers.items():
            if server_id not in self._found:
                self._found[server_id] = _Found(address, self._create(server_id, address))
                self.note_changed()

    def _create(self, server_id: int, address: chatter.Address) -> Replication:
        mlog.info("server of the group", extra={"server": server_id, "address": str(address)})
        name = f"event/{self._engine.server_id}"
        connect = functools.partial(
            client.connect, address, name, client_token=self._token, keeps_bounds=True
        )
        created = replication.create(self._engine, server_id, connect)
        created.register_remote_status_cb(self._on_remote_status)
        return created
