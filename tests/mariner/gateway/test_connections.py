"""What operators are told of connections, and that one can be closed."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventer_bridge import slices, tls
from eventer_bridge.errors import ConfigurationError, ControlError
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.gateway import connection_requests
from mariner.gateway.connection_requests import ConnectionsAnswer, with_rates
from mariner.gateway.gateway import Gateway
from tests.support.certificates import make_certificates
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.waiting import until


async def answer(gateway: Gateway, **request: Any) -> ConnectionsAnswer:
    """Through what the control socket calls."""
    told = await connection_requests.answer(gateway, {"do": "list", **request})
    return msgspec.convert(told, ConnectionsAnswer)


def address(peer: RawPeer) -> str:
    host, port = peer.writer.get_extra_info("sockname")
    return f"{host}:{port}"


async def test_who_is_connected_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_certificates(tmp_path)
    server = {"cert": made.server_cert, "key": made.server_key, "client_ca": made.ca}
    mariner = {"host": "127.0.0.1", "port": 0, "tls": {i: str(j) for i, j in server.items()}}
    context = tls.client_context(made.ca, made.client_cert, made.client_key)
    wanted = [["a", "?"], ["b", "*"], ["c"], ["d"]]
    async with (
        running_gateway(mariner=mariner) as gateway,
        await RawPeer.init(gateway.mariner.port, context, subscriptions=wanted) as peer,
    ):
        before = await answer(gateway)
        assert (await peer.request(register_req(1, event("x", value="y" * 1_000))))["success"]
        after = await answer(gateway)
        [told] = with_rates(before, after).connections
        monkeypatch.setattr(limits, "MAX_SHOWN_QUERY_TYPE_CHARACTERS", 8)
        [cut] = (await answer(gateway)).connections
        assert cut.certificate_text.startswith("CN:deve… until 20")
        assert (told.wire, told.client, told.peer) == ("mariner", "app", address(peer))
    assert (told.tls, told.certificate) == ("TLSv1.3", "CN:development")
    assert told.certificate_text.startswith("CN:development until 20")
    assert told.subscription_text == "a/?, b/*, c, and 1 more"
    assert told.since is not None
    assert told.since.endswith("+00:00")
    assert 0 <= (told.connected_s or -1) < 60
    assert (told.behind_s, told.unread_bytes, told.not_read) == (0, 0, [])
    assert told.buffered_bytes > 0  # its subscription
    seconds = after.at_s - before.at_s
    assert (told.received_bytes_per_s or 0) * seconds > 1_000
    assert (told.sent_bytes_per_s or 0) > 0
    [first] = before.connections
    assert first.received_bytes_per_s is None


async def test_the_slowest_come_first_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_STATUS_CONNECTIONS", 3)
    async with (
        running_gateway() as gateway,
        await RawPeer.init(gateway.mariner.port, subscriptions=[["x"]]) as slow,
        await RawPeer.init(gateway.mariner.port) as old,
        await RawPeer.init(gateway.mariner.port) as new,
        await RawPeer.connect(gateway.mariner.port) as silent,
    ):
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        large = register_req(1, event("x", value="x" * 1_000_000))
        await until(lambda: len(gateway.mariner.connections) == 4)
        while not (found := await answer(gateway)).connections[0].behind_s:
            assert (await old.request(large))["success"]
        assert [i.peer for i in found.connections[:1]] == [address(slow)]
        assert found.connections[0].unread_bytes > 1_000_000
        assert found.connections[0].buffered_bytes >= found.connections[0].unread_bytes
        assert found.connections[0].not_read == ["it does not read"]
        assert found.left_out_text == "and 1 more: less far behind, with less buffered, or older"
        monkeypatch.setattr(limits, "MAX_STATUS_CONNECTIONS", 4)
        everyone = await answer(gateway)
        assert everyone.left_out_text == ""
        assert {i.peer for i in everyone.connections[1:3]} == {address(old), address(new)}
        last = everyone.connections[3]  # nothing is held for it
        assert (last.peer, last.client, last.subscription_text) == (address(silent), None, "")


async def test_one_is_closed_by_its_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        running_gateway([APP, {**APP, "name": "other"}]) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port, client_name="other") as other,
    ):
        [closed] = (
            await answer(gateway, do="close", peer=address(peer), operator="anna")
        ).connections
        assert (closed.client, closed.wire) == ("app", "mariner")
        assert await peer.is_closed_by_server()
        assert (await other.request({"msg_type": "ping_req", "ping_id": 1}))["ping_id"] == 1
        assert gateway.mariner.stats.closed[CloseReason.BY_OPERATOR] == 1
        for wrong in ({"peer": address(peer)}, {"peer": address(other), "wire": "eventer"}):
            with pytest.raises(ControlError, match="there is no connection of this address"):
                await answer(gateway, do="close", **wrong)
        with pytest.raises(ConfigurationError, match="connections: Invalid enum value 'x'"):
            await answer(gateway, do="x")
    [logged] = [i for i in caplog.records if i.msg == "closing connection" and i.levelno == 20][:1]
    assert logged.__dict__["reason"] == "closed by an operator"
    [line] = [i for i in caplog.records if i.name == "audit" and i.msg == "connection closed"]
    told = {i: line.__dict__[i] for i in ("client", "peer", "operator")}
    assert told == {"client": "app", "peer": address(peer), "operator": "anna"}


async def test_one_that_leaves_before_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        running_gateway() as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        run = slices.run

        async def leave_and_run(steps: Steps[Any]) -> Any:  # it was found by then
            peer.writer.close()
            await until(lambda: not gateway.mariner.connections)
            return await run(steps)

        monkeypatch.setattr(slices, "run", leave_and_run)
        with pytest.raises(ControlError, match=f"^{address(peer)}: there is no connection of this"):
            await answer(gateway, do="close", peer=address(peer))
        assert gateway.mariner.stats.closed[CloseReason.BY_OPERATOR] == 0
    assert "connection closed" not in [i.msg for i in caplog.records if i.name == "audit"]
