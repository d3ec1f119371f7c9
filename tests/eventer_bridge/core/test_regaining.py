"""A server of a group that gets its own events back from another one."""

import asyncio
import contextlib
from typing import Any

import pytest

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import Backend
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import NotOperationalError
from eventer_bridge.model import Event, EventId, JsonPayload, Status, Timestamp
from tests.eventer_bridge.core.engines import Recorder, register, register_event
from tests.support.inprocess import running_gateway
from tests.support.peer import INIT, RawPeer

OWN = 7


class HistoryRecorder(Recorder):
    """Remembers of which servers there is another history, too."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[int | None] = []

    def on_other_history(self, server_id: int | None) -> None:
        self.others.append(server_id)


def own_event(session: int) -> Event:
    return Event(EventId(OWN, session, 1), ("a",), Timestamp.now(), None, None)


def history_of(session: int, name: str) -> Event:
    """What the server registered when its history began."""
    payload = JsonPayload.of({"id": name})
    return Event(EventId(OWN, session, 2), history.type_of(OWN), Timestamp.now(), None, payload)


@pytest.mark.parametrize("distance", [-1, 5 * 10**12])
async def test_no_id_is_given_twice_after_a_second_loss(
    core: Engine, backend: Backend, distance: int
) -> None:
    """After the first one it went on further above than this time, or nearly as far."""
    await core.stop()
    await core.begin_regaining()
    last = backend.high_water_mark(OWN).session + distance
    await core.replicate([own_event(last)])
    await core.start()
    new = (await register(core, register_event("a"))).events[0].id
    assert new.session > last + limits.RESTORED_SESSIONS
    assert core.histories[OWN].id == backend.history_id


async def test_observers_hear_of_each_history_of_their_own_server(
    core: Engine, backend: Backend
) -> None:
    observer = HistoryRecorder()
    core.add_observer(observer)
    await core.stop()
    await core.start()
    assert observer.others == []
    await core.stop()
    await core.begin_regaining()
    assert observer.others == [OWN]
    await core.replicate([own_event(5), history_of(5, "before")])
    assert observer.others == [OWN, OWN]
    await core.read_histories()
    assert core.histories[OWN].id == "before"  # of what is here
    assert len(observer.others) == 2
    await core.start()
    assert core.histories[OWN].id == backend.history_id
    assert observer.others == [OWN] * 3


async def test_nobody_reads_on_in_a_history_that_is_not_known() -> None:
    async with running_gateway() as gateway:
        core = gateway.core
        assert isinstance(core, Engine)
        wanted: dict[str, Any] = {"subscriptions": [["*"]], "persisted": True}
        start: dict[str, Any] = {"start": [{"server": 1, "session": 1, "instance": 1}]}
        async with await RawPeer.init(gateway.mariner.port, **wanted, **start) as peer:
            await core.stop()
            await core.begin_regaining()
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:  # until it is closed
                    await peer.receive()
        async with await RawPeer.connect(gateway.mariner.port) as peer:
            peer.send({**INIT, **wanted, **start})
            answer = await peer.receive()
            assert not answer["success"]
            assert "events of server 1 are coming back from another one" in answer["error"]
        with pytest.raises(NotOperationalError):
            core.check_position(1)
        core.check_position(2)
        async with await RawPeer.init(gateway.mariner.port, **wanted, start=[]):
            await core.start()  # who saw nothing may read meanwhile
        assert core.status is Status.OPERATIONAL
        core.check_position(1)
