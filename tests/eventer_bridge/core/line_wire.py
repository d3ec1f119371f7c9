"""A toy wire, lines of text: how little a wire is on ``Stream`` and ``ClientSession``.

hello NAME TOKEN TYPE …  →  welcome STATUS | declined REASON
register TYPE JSON       →  registered SESSION | refused REASON
query TYPE               →  found COUNT
"""

import logging
from collections.abc import Sequence
from types import SimpleNamespace

from eventer_bridge.core.client_service import ClientService
from eventer_bridge.core.client_session import ClientSession
from eventer_bridge.errors import FrameError, Outcome, RemoteProtocolError
from eventer_bridge.model import JsonPayload, QueryLatestParams, QueryResult, RegisterEvent, Status
from eventer_bridge.net.admission import Slot
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.stream import Stream
from eventer_bridge.packed import Batch, batch_of
from eventer_bridge.slices import Steps

MAX_LINE_BYTES = 1_000_000


class Lines:
    """The protocol without I/O."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def buffered_bytes(self) -> int:
        return len(self._data)

    def receive_data(self, data: bytes) -> None:
        self._data += data

    def receive_eof(self) -> None: ...

    def next_message(self) -> str | None:
        line, end, rest = self._data.partition(b"\n")
        if len(line) > MAX_LINE_BYTES:
            raise FrameError(f"a line of more than {MAX_LINE_BYTES} bytes")
        if not end:
            return None
        self._data = rest
        return line.decode(errors="replace")

    def discard(self) -> None:
        self._data.clear()


class Client(Stream[str]):
    mlog = logging.getLogger(__name__)

    def __init__(self, service: ClientService, streams: "set[Client]", slot: Slot) -> None:
        super().__init__(Lines(), service.stats, Liveness(None, 0), slot, streams)
        self.types = service.core.types
        self.session: ClientSession[None] = ClientSession(service, self, self)

    def on_message(self, message: str) -> None:
        word, *rest = message.split(" ")
        types = [tuple(i.split("/")) for i in rest]
        if word == "hello":
            self.session.init(rest[0], rest[1], types[2:], None, persisted=False)
        elif self.session.rights is None:
            raise RemoteProtocolError(f"{word} came first, expected hello")
        elif word == "register":
            event = RegisterEvent(types[0], None, JsonPayload.of(" ".join(rest[1:])))
            self.session.registrations.register(batch_of([event], self.types))
        else:
            self.session.queries.add(None, QueryLatestParams(types))

    def on_closing(self) -> None:
        self.session.leave()

    def on_closed(self, reason: str) -> None:
        del self.session

    @property
    def is_answering(self) -> bool:
        return self.session.is_answering

    def send(self, *words: object) -> None:
        self.write(" ".join(map(str, words)).encode() + b"\n")

    def use_rights(self, rights: object) -> None: ...

    def send_accepted(self, status: Status, *_: object) -> None:
        self.send("welcome", status.name)

    def send_declined(self, reason: str, *, may_pass: bool) -> None:
        self.send("declined", reason)

    def send_registered(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.send("registered", batch.session)

    def send_repeated(self, batch: Batch) -> None:
        self.send("repeated", batch.session)

    def send_refused(self, batch: Batch, reason: str, outcome: Outcome) -> None:
        self.send(outcome.value, reason)

    def encode_result(self, request: None, result: QueryResult) -> Steps[list[bytes]]:
        yield
        return [b"found %d\n" % len(result.events)]

    def send_result(self, request: None, parts: list[bytes]) -> None:
        self.write_parts(parts)

    def send_notification(self, message: bytes) -> None:
        self.write(message)

    def send_status(self, status: Status) -> None:
        self.send("status", status.name)


def notification(session: Batch, indices: Sequence[int]) -> bytes:
    return b"".join(b"event %b\n" % "/".join(session.events[i].type).encode() for i in indices)


ENCODING = SimpleNamespace(
    notification=notification, prepare=lambda session: iter(()), is_answerable=lambda session: True
)
