"""The least that a Python server must do on Mariner's wire: ``python -m tests.perf.limit``.

It cuts frames, decodes registrations into typed values, gives ids, encodes the answers and sends
them. It stores nothing, checks nothing and knows no other client; and it shares no code with the
gateway, so that what the gateway pays for more can be seen. It listens on a port that the kernel
chooses, until SIGTERM.
"""

import asyncio
import gc
import signal
import time
from typing import Final, cast

import msgspec
import uvloop

HOST: Final = "127.0.0.1"


class Moment(msgspec.Struct, gc=False):
    """A timestamp."""

    s: int
    us: int


class Wanted(msgspec.Struct, gc=False):
    """An event to register; its payload stays the bytes it came as."""

    type: tuple[str, ...]
    source_timestamp: Moment | None
    payload: msgspec.Raw


class Id(msgspec.Struct, gc=False):
    """Of an event."""

    server: int
    session: int
    instance: int


class Registered(msgspec.Struct, gc=False):
    """An event that was registered."""

    id: Id
    type: tuple[str, ...]
    timestamp: Moment
    source_timestamp: Moment | None
    payload: msgspec.Raw


class InitReq(msgspec.Struct, tag_field="msg_type", tag="init_req"):
    """Who the client is; anybody may."""


class RegisterReq(msgspec.Struct, tag_field="msg_type", tag="register_req", gc=False):
    """Events to register in one session."""

    register_id: int
    register_events: list[Wanted]


class InitRes(msgspec.Struct, tag_field="msg_type", tag="init_res"):
    """The client may go on."""

    success: bool = True
    status: str = "OPERATIONAL"


class RegisterRes(msgspec.Struct, tag_field="msg_type", tag="register_res", gc=False):
    """The events of a session."""

    register_id: int
    events: list[Registered]
    success: bool = True


decode = msgspec.json.Decoder(InitReq | RegisterReq).decode
encode = msgspec.json.Encoder().encode


class LimitServer(asyncio.Protocol):
    """A connection."""

    def __init__(self) -> None:
        self._session = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        data = self._tail + data
        size = len(data)
        end = position = 0
        answers: list[bytes] = []
        while position < size:
            begin = position + 1 + data[position]
            end = begin + int.from_bytes(data[position + 1 : begin], "big")
            if end > size:
                break
            answer = encode(self._answer(decode(data[begin:end])))
            answers += (b"\x04", len(answer).to_bytes(4, "big"), answer)
            position = end
        self._tail = data[position:]
        self._transport.write(b"".join(answers))

    def _answer(self, request: InitReq | RegisterReq) -> InitRes | RegisterRes:
        if isinstance(request, InitReq):
            return InitRes()
        self._session += 1
        now_us = time.time_ns() // 1_000
        now = Moment(now_us // 1_000_000, now_us % 1_000_000)
        events = [
            Registered(Id(1, self._session, instance), i.type, now, i.source_timestamp, i.payload)
            for instance, i in enumerate(request.register_events, 1)
        ]
        return RegisterRes(request.register_id, events)


async def main() -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    server = await loop.create_server(LimitServer, HOST, 0)
    await over.wait()
    server.close()


if __name__ == "__main__":
    gc.disable()  # nothing in it refers to itself
    uvloop.run(main())
