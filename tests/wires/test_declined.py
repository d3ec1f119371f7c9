"""Who is declined gets time to read why, and to close first, on both wires (001)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.chatter.codec import Msg
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import MsgInitReq, MsgInitRes
from eventer_bridge.net.stats import CloseReason, ServerStats
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.chatter.peers import RawPeer as ChatterPeer
from tests.support.inprocess import running_gateway
from tests.support.peer import INIT, RawPeer
from tests.wires import readers
from tests.wires.world import LISTEN, eventer_port

CORE: Final = {
    "server_id": 1,
    "backend": {"type": "memory"},
    "eventer_server": {**LISTEN, "token": "secret"},
}
Declined = RawPeer | ChatterPeer


async def declined_by_mariner(gateway: Gateway) -> Declined:
    peer = await RawPeer.connect(gateway.mariner.port)
    answer = await peer.request({**INIT, "client_token": "wrong"})
    assert (answer["msg_type"], answer["success"]) == ("init_res", False)
    return peer


async def declined_by_eventer(gateway: Gateway) -> Declined:
    peer = await ChatterPeer.connect(chatter.Address("127.0.0.1", eventer_port(gateway), False))
    name, data = codec.encode(MsgInitReq("gui", "wrong", (), None, False))
    peer.send(Msg(1, 1, True, True, False, name, data))
    answer = await peer.receive()
    decoded = codec.decode(answer.type, bytes(answer.data))
    assert isinstance(decoded, MsgInitRes)
    assert decoded.status is None
    return peer


def stats_of(gateway: Gateway, decline: object) -> ServerStats:
    if decline is declined_by_mariner:
        return gateway.mariner.stats
    assert gateway.eventer_server is not None
    return gateway.eventer_server.stats


@pytest.mark.parametrize("decline", [declined_by_mariner, declined_by_eventer])
async def test_who_is_declined_may_close_first(
    monkeypatch: pytest.MonkeyPatch, decline: Callable[[Gateway], Awaitable[Declined]]
) -> None:
    monkeypatch.setattr(limits, "DECLINED_LINGER_S", 3_600.0)
    async with asyncio.timeout(60), running_gateway(event_core=CORE) as gateway:
        async with await decline(gateway) as peer:
            async with readers.mariner(gateway.mariner.port) as other:
                for _ in range(3):  # an end that was sent with the answer has come by now
                    await other.ping()
            assert not peer.reader.at_eof()
        while not stats_of(gateway, decline).closed[CloseReason.DECLINED]:
            await asyncio.sleep(0.005)
