"""An Eventer server for tests, and a client that sends what it likes."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from eventer_bridge import chatter
from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.core.authentication import Authenticator, OneForAll
from eventer_bridge.core.engine import Engine
from eventer_bridge.eventer import codec
from eventer_bridge.eventer import server as eventer_server
from eventer_bridge.eventer.messages import (
    Message,
    MsgInitReq,
    MsgInitRes,
    MsgRegisterReq,
    MsgRegisterRes,
)
from eventer_bridge.eventer.server import EventerServer
from eventer_bridge.model import Event, EventType, JsonPayload, RegisterEvent, Status
from tests.eventer_bridge.chatter.peers import Recorder
from tests.support.waiting import until, within

M = TypeVar("M")


class Serving(NamedTuple):
    """A running server and its core."""

    server: EventerServer
    core: Engine


@contextlib.asynccontextmanager
async def serving(
    path: Path | None = None,
    authenticator: Authenticator | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[Serving]:
    """An Eventer server with the id 1; in memory, or with a store at ``path``."""
    backend = await rocksdb.create_temporary() if path is None else await rocksdb.create(path)
    async with backend, await engine.create(backend, 1) as core:
        address = chatter.Address("127.0.0.1", port, tls is not None)
        async with await eventer_server.listen(
            core, address, authenticator or OneForAll(None), tls=tls
        ) as server:
            yield Serving(server, core)


def register_event(*segments: str, value: Any = 1) -> RegisterEvent:
    """An event with a JSON payload."""
    return RegisterEvent(segments, None, JsonPayload.of(value))


class Peer(Recorder):
    """Nothing that it sends is checked; nothing is answered."""

    async def receive(self, message_type: type[M]) -> tuple[M, chatter.Message]:
        """The next message, which has to be of this type."""
        async with within(message_type.__name__):
            message = await self.messages.get()
        decoded = codec.decode(message.type, message.data)
        assert isinstance(decoded, message_type), decoded
        return decoded, message

    def send(self, message: Message, *, last: bool = True) -> chatter.Conversation:
        """Send a message that begins a conversation."""
        return self.connection.send(*codec.encode(message), last=last)

    async def request(self, message: Message, answer_type: type[M]) -> M:
        """Send a message; the next one has to be its answer."""
        conversation = self.send(message, last=False)
        decoded, answer = await self.receive(answer_type)
        assert answer.conversation is conversation
        assert answer.is_last
        return decoded

    async def register(self, *events: RegisterEvent) -> Sequence[Event] | None:
        """Register, with an answer."""
        return (await self.request(MsgRegisterReq(events), MsgRegisterRes)).events

    async def close_reason(self) -> str:
        """Why it was closed; waits for that."""
        async with within("the end of a connection"):
            return await self.closed


@contextlib.asynccontextmanager
async def raw(server: EventerServer) -> AsyncIterator[Peer]:
    """A connection on which nothing was said yet."""
    connection, peer = await chatter.connect(server.address, Peer)
    async with connection:
        yield peer


@contextlib.asynccontextmanager
async def initialised(
    server: EventerServer,
    subscriptions: Sequence[EventType] = (),
    *,
    name: str = "gui/1",
    token: str | None = None,
    server_id: int | None = None,
    persisted: bool = False,
) -> AsyncIterator[Peer]:
    """A connection that was accepted."""
    async with raw(server) as peer:
        request = MsgInitReq(name, token, tuple(subscriptions), server_id, persisted)
        assert await peer.request(request, MsgInitRes) == MsgInitRes(Status.OPERATIONAL)
        yield peer


async def closed(server: EventerServer, reason: str, count: int = 1) -> None:
    """Wait until the server has closed so many connections for this reason."""
    await until(lambda: server.stats.closed[reason] >= count)
