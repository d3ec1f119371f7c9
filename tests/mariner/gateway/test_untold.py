"""Who cannot be told of a session is closed, and gets it from the store; the others are told."""

from collections.abc import Callable
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.core.fanout import Fanout
from eventer_bridge.packed import Batch
from tests.mariner.gateway.test_replay import connect, id_of, of, reader, received, serving, values
from tests.support.peer import RawPeer

N_LARGE = limits.LARGE_SESSION_EVENTS + 1


def of_encoding(patch: pytest.MonkeyPatch, fanout: Fanout) -> None:
    encode = fanout._encode

    def encode_others(session: Batch, indices: Any) -> bytes:
        if ("a",) in session.types:
            raise MemoryError
        return encode(session, indices)

    patch.setattr(fanout, "_encode", encode_others)


def of_finding_out(patch: pytest.MonkeyPatch, fanout: Fanout) -> None:
    collect = fanout._collect

    def collect_others(groups: Any, types: Any, *others: Any) -> None:
        if ("a",) in types:
            raise MemoryError
        collect(groups, types, *others)

    patch.setattr(fanout, "_collect", collect_others)


@pytest.mark.parametrize("n_events", [1, N_LARGE])
@pytest.mark.parametrize("fail", [of_encoding, of_finding_out])
async def test_those_who_would_miss_a_session_are_closed(
    fail: Callable[[pytest.MonkeyPatch, Fanout], None],
    n_events: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(None) as gateway,
        await connect(gateway) as connection,
        await reader(gateway, "earliest") as replaying,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["a"]]) as plain,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["b"]]) as other,
    ):
        assert await received(replaying) == []
        [seen] = await connection.register([of("a", value=0)])
        assert values(await received(replaying, 1)) == values(await received(plain, 1)) == [0]
        with monkeypatch.context() as patch:
            fail(patch, gateway.mariner.service.fanout)
            await connection.register([of("a", value=1)] * n_events)
            assert await replaying.is_closed_by_server()
            assert await plain.is_closed_by_server()
            await connection.register([of("b", value=2)])
        assert values(await received(other, 1)) == [2]
        assert gateway.mariner.stats.closed["internal error"] == 2
        closing = [i for i in caplog.records if i.message == "closing connection"]
        assert {vars(i)["detail"] for i in closing} == {"MemoryError()"}
        async with await reader(gateway, [id_of(seen)]) as again:
            assert values(await received(again)) == [1] * n_events
