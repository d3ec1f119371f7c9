"""Two of ours over real sockets: conversations, TLS, back-pressure, closing."""

import asyncio
import math
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import chatter, limits, tls
from eventer_bridge.chatter.codec import Dialect, Msg
from eventer_bridge.errors import (
    ClosedError,
    ConfigurationError,
    ConnectError,
    LocalProtocolError,
)
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause
from eventer_bridge.resources import call_on_cancel
from tests.eventer_bridge.chatter.peers import (
    ANY,
    Echo,
    RawPeer,
    Recorder,
    connected,
    listening,
)
from tests.support.certificates import make_certificates

DIALECTS: Final = pytest.mark.parametrize("dialect", Dialect)
HELLO: Final = Msg(1, 1, True, True, True, "T.Hello", b"")
TLS_ANY: Final = ANY._replace(is_tls=True)


async def turns() -> None:
    """Let the loop look at all its sockets some times: messages of others come and go."""
    async with listening(Echo) as there, connected(there.address) as here:
        for _ in range(5):
            await here.ask()


@DIALECTS
async def test_conversations_in_both_directions(dialect: Dialect) -> None:
    async with listening(Echo) as there, connected(there.address, dialect=dialect) as here:
        assert await here.ask(b"1") == b"1"
        handler = await there.handlers.get()
        assert handler.connection.dialect is dialect
        assert (await handler.messages.get()).type == "Test.MsgAsk"
        asked = handler.connection.send("Test.MsgBack", b"2", last=False)
        message = await here.messages.get()
        here.connection.send("Test.MsgForth", b"3", conversation=message.conversation, last=False)
        answer = await handler.messages.get()
        assert answer.conversation is asked
        assert (answer.type, answer.data) == ("Test.MsgForth", b"3")


@DIALECTS
async def test_large_messages(dialect: Dialect) -> None:
    data = bytes(8 << 20)
    async with listening(Echo) as there, connected(there.address, dialect=dialect) as here:
        await here.ask(b"first")
        assert await here.ask(data) == data


async def test_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    server = tls.server_context(made.server_cert, made.server_key, made.ca)
    client = tls.client_context(made.ca, made.client_cert, made.client_key)
    async with listening(Echo, TLS_ANY, tls=server) as there:
        assert str(there.address).startswith("ssl+sbs://127.0.0.1:")
        async with connected(there.address, tls=client) as here:
            await here.ask(b"first")
            assert await here.ask(bytes(100_000)) == bytes(100_000)
            handler = await there.handlers.get()
            assert tls.peer_names(handler.connection.ssl_object) == {"CN:development"}
        assert await handler.closed == "peer closed"
        # who is not told which certificates to trust verifies all the same
        with pytest.raises(ConnectError, match="was not issued by a certificate authority that is"):
            await chatter.connect(there.address, Recorder)
        with pytest.raises(ConnectError, match=r"not for 'example\.org'"):
            await chatter.connect(
                there.address, Recorder, tls=client, server_hostname="example.org"
            )


async def test_tls_and_address_go_together(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    context = tls.server_context(made.server_cert, made.server_key)
    for address, listener_tls in ((ANY, context), (TLS_ANY, None)):
        with pytest.raises(ConfigurationError, match=r"expected an address of ssl\+sbs with TLS"):
            await chatter.listen(address, Recorder, tls=listener_tls)
    with pytest.raises(ConfigurationError, match=r"TLS is given, expected an address of ssl\+sbs"):
        await chatter.connect(ANY, Recorder, tls=tls.client_context(made.ca))


async def test_why_there_is_no_connection(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = ANY._replace(port=unused.getsockname()[1])
        with pytest.raises(ConnectError) as e:
            await chatter.connect(address, Recorder)
        assert str(e.value) == f"tcp+sbs://127.0.0.1:{address.port}: connection refused"
    made = make_certificates(tmp_path / "certs")
    client = tls.client_context(made.ca)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = TLS_ANY._replace(port=silent.getsockname()[1])
        with pytest.raises(ConnectError, match=r"no connection within 0\.1 s"):
            await chatter.connect(address, Recorder, tls=client, connect_timeout_s=0.1)
    async with listening() as plain:
        with pytest.raises(ConnectError, match="TLS: "):
            await chatter.connect(
                plain.address._replace(is_tls=True), Recorder, tls=client, connect_timeout_s=60
            )


async def test_what_a_handler_sends_leaves_in_one_piece() -> None:
    """And so does what is sent one after the other from elsewhere."""
    async with listening(Echo) as there, await RawPeer.connect(there.address) as raw:
        raw.send(*(Msg(i, i, True, True, False, "T.A", b"x") for i in range(1, 51)))
        received = [await raw.receive() for _ in range(50)]
        assert [i.first for i in received] == list(range(1, 51))
        assert [i.id for i in received] == list(range(1, 51))
        handler = await there.handlers.get()
        for i in range(50):
            handler.connection.send("T.B", bytes([i]))
        assert [(await raw.receive()).data[0] for _ in range(50)] == list(range(50))


# --- back-pressure ------------------------------------------------------------------------


async def test_reading_is_paused_and_resumed() -> None:
    async with listening() as there, connected(there.address) as here:
        here.connection.send("T.A", b"0")
        handler = await there.handlers.get()
        await handler.messages.get()
        handler.connection.pause_reading(Pause.USER)
        handler.connection.pause_reading(Pause.LARGE_MESSAGE)
        while not here.connection.is_write_blocked:
            here.connection.send("T.A", bytes(100_000))
            await asyncio.sleep(0)
        here.connection.send("T.Last", b"")
        drained = asyncio.create_task(here.connection.drain())
        handler.connection.resume_reading(Pause.USER)
        handler.connection.resume_reading(Pause.USER)  # once is enough
        await turns()
        assert handler.messages.empty()
        assert not drained.done()
        handler.connection.resume_reading(Pause.LARGE_MESSAGE)
        while (await handler.messages.get()).type != "T.Last":
            pass
        await drained


async def test_a_handler_may_pause_between_two_messages() -> None:
    class Careful(Recorder):
        def on_message(self, message: chatter.Message) -> None:
            super().on_message(message)
            self.connection.pause_reading(Pause.USER)

    async with listening(Careful) as there, await RawPeer.connect(there.address) as raw:
        raw.send(*(Msg(i, i, True, True, True, "T.A", b"") for i in range(1, 6)))
        handler = await there.handlers.get()
        for _ in range(5):
            await handler.messages.get()
            assert handler.messages.empty()
            handler.connection.resume_reading(Pause.USER)


async def test_a_peer_with_too_many_open_conversations_is_not_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "MAX_PEER_CONVERSATIONS", 3)
    async with listening() as there, connected(there.address) as here:
        asked = [here.connection.send("T.A", b"%d" % i, last=False) for i in range(10)]
        handler = await there.handlers.get()
        for i in range(10):
            message = await handler.messages.get()
            assert handler.messages.qsize() < 3
            handler.connection.send("T.B", message.data, conversation=message.conversation)
            answer = await here.messages.get()
            assert answer.conversation is asked[i]


async def test_a_peer_that_does_not_read_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "SEND_HIGH_WATER_BYTES", 100_000)
    async with listening(Echo) as there:
        raw = await RawPeer.connect(there.address, receive_buffer_bytes=10_000)
        async with raw:
            raw.send(HELLO)
            handler = await there.handlers.get()
            count = 0
            while not handler.connection.is_write_blocked:
                count += 1
                raw.send(Msg(count + 1, count + 1, True, True, False, "T.A", bytes(10_000)))
                await asyncio.sleep(0)
            raw.send(*(Msg(i, i, True, True, False, "T.A", b"") for i in range(9001, 9101)))
            taken = handler.messages.qsize()
            await turns()
            assert handler.messages.qsize() == taken
            # whatever it still answers to is bounded
            assert handler.connection.unread_bytes < 3_000_000
            for _ in range(count + 100):
                await raw.receive()
            assert handler.messages.qsize() == 1 + count + 100


@pytest.mark.parametrize("say", [chatter.Connection.send, chatter.Connection.send_alone])
async def test_a_slow_consumer_is_closed(
    say: Callable[[chatter.Connection, str, bytes], object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(net_limits, "MAX_SEND_BUFFER_BYTES", 3 << 20)
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        handler = await there.handlers.get()
        await handler.messages.get()
        # one message of any size is not the reason
        say(handler.connection, "T.Large", bytes(20 << 20))
        await asyncio.sleep(0)
        assert handler.connection.is_open
        say(handler.connection, "T.More", b"")
        assert await handler.closed == "slow consumer"
        with pytest.raises(ClosedError, match="slow consumer"):
            say(handler.connection, "T.More", b"")
        with pytest.raises(ClosedError, match="slow consumer"):
            await handler.connection.drain()
    [record] = [i for i in caplog.records if i.message == "closing connection"]
    assert record.__dict__["reason"] == "slow consumer"
    assert "bytes are not read" in record.__dict__["detail"]


async def test_a_peer_that_stopped_reading_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.02)
    monkeypatch.setattr(net_limits, "WRITE_STALL_TIMEOUT_S", 0.2)
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        handler = await there.handlers.get()
        await handler.messages.get()
        handler.connection.send("T.Large", bytes(20 << 20))
        assert await handler.closed == "write stalled"


# --- time ---------------------------------------------------------------------------------


async def test_who_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 1e6)  # this test sweeps
    ping = Msg(1, 1, True, True, False, "HatChatter.Ping", b"")
    async with listening() as there:
        for is_pinging in (False, True):
            async with await RawPeer.connect(there.address) as raw:
                handler = await there.handlers.get()
                if is_pinging:
                    raw.send(ping)
                    assert (await raw.receive()).type == "HatChatter.Pong"
                handler.connection.sweep(time.monotonic())
                assert not handler.closed.done()
                handler.connection.sweep(time.monotonic() + net_limits.FIRST_MESSAGE_TIMEOUT_S)
                assert await raw.is_closed_by_peer()
                assert await handler.closed == "no first message"


@DIALECTS
async def test_a_half_open_peer_is_pinged_and_closed(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 1e6)  # this test sweeps
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.dialect = dialect
        raw.send(HELLO)
        handler = await there.handlers.get()
        await handler.messages.get()
        connection = handler.connection
        expected = {Dialect.CURRENT: "HatChatter.Ping", Dialect.CLASSIC: "HatPing.MsgPing"}
        now = time.monotonic()
        for i in (0, 30, 31):  # 003: after 30 s
            connection.sweep(now + i)
        assert await raw.receive() == Msg(1, 1, True, True, False, expected[dialect], b"")
        # anything is a sign of life
        raw.send(Msg(2, 2, True, True, True, "T.A", b""))
        await handler.messages.get()
        for i in (62, 93, 123, 124):
            assert not handler.closed.done()
            connection.sweep(now + i)
        assert await raw.is_closed_by_peer()
        assert await handler.closed == "ping timeout"


async def test_who_connects_pings_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 1e6)  # this test sweeps
    peers: asyncio.Queue[RawPeer] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: peers.put_nowait(RawPeer(reader, writer)), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with server, connected(ANY._replace(port=port)) as here:
        now = time.monotonic()
        for i in (0, 30, 31):
            here.connection.sweep(now + i)
        async with await peers.get() as raw:
            assert await raw.receive() == Msg(1, 1, True, True, False, "HatChatter.Ping", b"")
            for i in (61, 62):
                assert not here.closed.done()
                here.connection.sweep(now + i)
            assert await raw.is_closed_by_peer()
        assert await here.closed == "ping timeout"


async def test_a_conversation_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the connection is closed then; a handler may see it otherwise."""
    monkeypatch.setattr(limits, "SWEEP_PERIOD_S", 0.02)

    class Strict(Recorder):
        on_timeout = chatter.Handler.on_timeout

    async with listening() as there:
        async with connected(there.address, conversation_timeout_s=0.2) as here:
            asked = here.connection.send("T.A", b"", last=False)
            here.connection.send("T.B", b"", last=False, timeout_s=math.inf)
            assert await here.timeouts.get() is asked
            # the late answer is dropped, the connection goes on
            handler = await there.handlers.get()
            for answer in (b"late", b"in time"):
                message = await handler.messages.get()
                handler.connection.send("T.C", answer, conversation=message.conversation)
            assert (await here.messages.get()).data == b"in time"
            assert here.timeouts.empty()
        connection, strict = await chatter.connect(
            there.address, Strict, conversation_timeout_s=0.2
        )
        async with connection:
            connection.send("T.A", b"", last=False)
            assert await strict.closed == "protocol error"


# --- closing ------------------------------------------------------------------------------


async def test_closing_delivers_what_was_sent() -> None:
    async with listening() as there, connected(there.address) as here:
        here.connection.send("T.A", b"x" * 3_000_000)
        here.connection.send("T.B", b"")
        await here.connection.async_close()
        assert await here.closed == here.connection.close_reason == "closed by this side"
        with pytest.raises(ClosedError, match="closed by this side"):
            here.connection.send("T.A", b"")
        handler = await there.handlers.get()
        # more than a first message may have: the listener says why it closes
        assert await handler.closed == "protocol error"

    async with listening() as there, connected(there.address) as here:
        here.connection.send("T.First", b"")
        here.connection.send("T.A", b"x" * 3_000_000)
        here.connection.send("T.B", b"")
        await here.connection.async_close()
        handler = await there.handlers.get()
        assert [(await handler.messages.get()).type for _ in range(3)] == ["T.First", "T.A", "T.B"]
        assert await handler.closed == "peer closed"
        await handler.connection.wait_closed()


async def test_lingering_waits_for_the_peer_to_close() -> None:
    class Declining(Recorder):
        def on_message(self, message: chatter.Message) -> None:
            self.connection.send("T.Declined", b"why", conversation=message.conversation)
            self.connection.close(CloseReason.DECLINED, linger_s=5)

    async with listening(Declining) as there, await RawPeer.connect(there.address) as raw:
        raw.send(Msg(1, 1, True, True, False, "T.Init", b""))
        assert (await raw.receive()).data == b"why"
        handler = await there.handlers.get()
        raw.send(*(Msg(i, i, True, True, True, "T.A", bytes(10_000)) for i in range(2, 200)))
        await raw.writer.drain()
        assert not handler.closed.done()
        raw.writer.close()
        assert await handler.closed == "declined"


async def test_lingering_notices_that_the_peer_closes_even_if_it_was_not_read_from() -> None:
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        handler = await there.handlers.get()
        await handler.messages.get()
        handler.connection.pause_reading(Pause.USER)
        handler.connection.close(CloseReason.DECLINED, linger_s=30)
        raw.writer.close()
        async with asyncio.timeout(60):
            assert await handler.closed == "declined"


async def test_lingering_is_bounded() -> None:
    class Declining(Recorder):
        def on_message(self, message: chatter.Message) -> None:
            self.connection.close(CloseReason.DECLINED, linger_s=0.1)

    async with listening(Declining) as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        assert await raw.is_closed_by_peer()
        assert await (await there.handlers.get()).closed == "declined"


async def test_a_peer_that_does_not_let_go_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "CLOSE_TIMEOUT_S", 0.1)
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        handler = await there.handlers.get()
        await handler.messages.get()
        handler.connection.send("T.Large", bytes(20 << 20))
        await handler.connection.async_close()
        assert handler.closed.done()


async def test_a_listener_closes_its_connections() -> None:
    async with listening(Echo) as there:
        peers = [await chatter.connect(there.address, Recorder) for _ in range(5)]
        for _, recorder in peers:
            await recorder.ask()
        assert len(there.listener.connections) == 5
    assert not there.listener.connections
    for connection, recorder in peers:
        assert await recorder.closed == "peer closed"
        await connection.wait_closed()
    with pytest.raises(ConnectError):
        await chatter.connect(there.address, Recorder)


async def test_who_stopped_accepting_goes_on_with_those_that_there_are() -> None:
    async with listening(Echo) as there, connected(there.address) as here:
        await here.ask()
        await there.listener.stop_accepting()
        with pytest.raises(ConnectError):
            await chatter.connect(there.address, Recorder)
        assert await here.ask(b"still") == b"still"


async def test_a_group_of_the_connection_closes_with_it() -> None:
    async with listening() as there, connected(there.address) as here:
        here.connection.send("T.A", b"")
        handler = await there.handlers.get()
        ended = asyncio.Event()
        handler.connection.async_group.spawn(call_on_cancel, ended.set)
        await handler.messages.get()
        await here.connection.async_close()
        await ended.wait()
        await handler.connection.wait_closed()


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_peer_that_only_ended_its_stream_is_heard_and_answered(is_last: bool) -> None:
    async with listening() as there, await RawPeer.connect(there.address) as raw:
        raw.send(HELLO)
        handler = await there.handlers.get()
        await handler.messages.get()
        handler.connection.pause_reading(Pause.USER)
        raw.send(*(Msg(i, i, True, True, is_last, "T.A", b"") for i in range(2, 12)))
        raw.writer.write_eof()
        # a paused connection does not notice; what was read before the end is heard then
        handler.connection.resume_reading(Pause.USER)
        messages = [await handler.messages.get() for _ in range(10)]
        if not is_last:
            while not handler.connection.has_ended:
                await asyncio.sleep(0)
            assert not handler.closed.done()
            assert (await raw.receive()).type == "HatChatter.Ping"  # is it still there?
            for message in messages:
                handler.connection.send("T.B", b"", conversation=message.conversation)
            assert [(await raw.receive()).first for _ in range(10)] == list(range(2, 12))
        assert await handler.closed == "peer closed"


# --- mistakes -----------------------------------------------------------------------------


async def test_a_failing_handler_costs_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Echo):
        def on_message(self, message: chatter.Message) -> None:
            if message.data == b"fail":
                raise LocalProtocolError("ours")
            super().on_message(message)

    async with listening(Failing) as there, connected(there.address) as other:
        await other.ask()
        await there.handlers.get()
        async with connected(there.address) as here:
            here.connection.send("T.A", b"fail")
            assert await here.closed == "peer closed"
            assert await (await there.handlers.get()).closed == "internal error"
        assert await other.ask(b"still") == b"still"
    [record] = [i for i in caplog.records if i.message == "handler failed"]
    assert record.exc_info is not None


async def test_a_handler_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: chatter.Connection) -> chatter.Handler:
        raise LocalProtocolError("ours")

    async with await chatter.listen(ANY, fail) as listener:
        async with await RawPeer.connect(listener.address) as raw:
            assert await raw.is_closed_by_peer()
        async with listening() as there:
            with pytest.raises(ConnectError, match="internal error"):
                await chatter.connect(there.address, fail)
            assert await (await there.handlers.get()).closed == "peer closed"
    assert len([i for i in caplog.records if i.message == "handler failed"]) == 2


async def test_a_handler_that_sends_after_it_closed_is_forgiven(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Closing(Recorder):
        def on_message(self, message: chatter.Message) -> None:
            self.connection.close(CloseReason.DECLINED)
            self.connection.send("T.A", b"")

    async with listening(Closing) as there, connected(there.address) as here:
        here.connection.send("T.A", b"")
        assert await (await there.handlers.get()).closed == "declined"
    assert not [i for i in caplog.records if i.message == "handler failed"]


async def test_the_example_of_the_documentation() -> None:
    text = chatter.__doc__ or ""
    begin, end = text.index("    class Echo"), text.index("\nOver TLS")
    lines = [line.removeprefix("    ") for line in text[begin:end].splitlines()]
    body = "\n".join(f"    {line}" for line in lines).replace(":23012", ":0")
    names: dict[str, Any] = {"chatter": chatter, "asyncio": asyncio}
    exec(f"async def example():\n{body}", names)  # noqa: S102  # our own text
    await names["example"]()
