"""The attackers' own Mariner: frames and JSON over a blocking socket, nothing checked.

Nothing of the product is used, so that a mistake of its codec is none of its attackers.
"""

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

HOST: Final = "127.0.0.1"

STRANGER: Final = "127.0.0.66"
"""Address that attackers come from; honest clients come from another one."""

TIMEOUT_S: Final = 30.0
"""What an attacker waits for anything at the most."""


def frame(body: bytes) -> bytes:
    """A body with its header: bytes of the length, the length, the body (002, 003)."""
    size = max(1, (len(body).bit_length() + 7) // 8)
    return bytes([size]) + len(body).to_bytes(size, "big") + body


def encode(message: Any) -> bytes:
    """A Mariner message with its header."""
    return frame(json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode())


def init_req(name: str, token: str | None, subscriptions: Sequence[Sequence[str]] = ()) -> Any:
    """The first message."""
    return {
        "msg_type": "init_req",
        "client_name": name,
        "client_token": token,
        "subscriptions": subscriptions,
        "server_id": None,
        "persisted": False,
    }


def event(event_type: Sequence[str], value: Any = None) -> Any:
    """An event to be registered, with a JSON payload."""
    return {
        "type": event_type,
        "source_timestamp": None,
        "payload": {"payload_type": "json", "data": value},
    }


def register_req(register_id: int, events: Sequence[Any]) -> Any:
    """A registration."""
    return {"msg_type": "register_req", "register_id": register_id, "register_events": events}


def timeseries_req(query_id: int, event_types: Any, **properties: Any) -> Any:
    """A query for a sequence, newest first."""
    return {
        "msg_type": "query_req",
        "query_id": query_id,
        "query_type": "timeseries",
        "event_types": event_types,
        "order": "DESCENDING",
        "order_by": "TIMESTAMP",
        **properties,
    }


def latest_req(query_id: int, event_types: Any) -> Any:
    """A query for the latest of each type."""
    return {
        "msg_type": "query_req",
        "query_id": query_id,
        "query_type": "latest",
        "event_types": event_types,
    }


def connect(port: int, source: str = STRANGER) -> socket.socket:
    """A TCP connection.

    Raises:
        OSError: there is none.
    """
    return socket.create_connection((HOST, port), timeout=TIMEOUT_S, source_address=(source, 0))


def raise_descriptor_limit() -> int:
    """Let this process have as many connections as it may; how many that are, with a reserve."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard - 100


class Peer:
    """An initialised Mariner client.

    Args:
        port: where the gateway listens.
        name: name of the client.
        subscriptions: what it wants to be notified of.
        source: address that it comes from.
        token: of the client; None: its name.
        init: more of the first message.
    """

    def __init__(
        self,
        port: int,
        name: str = "insider",
        subscriptions: Sequence[Sequence[str]] = (),
        source: str = STRANGER,
        token: str | None = None,
        **init: Any,
    ) -> None:
        self.socket = connect(port, source)
        self._file = self.socket.makefile("rb")
        self.received_bytes = 0
        self.send({**init_req(name, token or name, subscriptions), **init})
        answer = self.receive()
        if not answer["success"]:
            raise ConnectionError(answer["error"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    def send(self, message: Any) -> None:
        """Send a message."""
        self.socket.sendall(encode(message))

    def receive_raw(self) -> bytes:
        """The next message as bytes.

        Raises:
            ConnectionError: the gateway closed.
        """
        size = self._read(1)[0]
        body = self._read(int.from_bytes(self._read(size), "big"))
        self.received_bytes += 1 + size + len(body)
        return body

    def receive(self) -> Any:
        """The next message; as :meth:`receive_raw`."""
        return json.loads(self.receive_raw())

    def request(self, message: Any, answer: str | None = None) -> Any:
        """Send a message and receive its answer.

        Args:
            message: the message.
            answer: type of the answer; others that come before are passed over. None: the
                next one, whatever it is.
        """
        self.send(message)
        while True:
            received = self.receive()
            if answer is None or received["msg_type"] == answer:
                return received

    def _read(self, n_bytes: int) -> bytes:
        data = self._file.read(n_bytes)
        if len(data) < n_bytes:
            raise ConnectionError("closed")
        return data


def register(port: int, events: Sequence[Any], per_request: int, name: str = "witness") -> None:
    """Register events in requests of so many, as an honest client would; not the observer."""
    with Peer(port, name, source=HOST) as peer:
        for number, begin in enumerate(range(0, len(events), per_request)):
            request = register_req(number, events[begin : begin + per_request])
            answer = peer.request(request, "register_res")
            if not answer["success"]:
                raise RuntimeError(answer["error"])


def until(duration_s: float, period_s: float = 0.0) -> Iterator[int]:
    """Count rounds until the time is over, at least one.

    Args:
        duration_s: time.
        period_s: between two rounds.
    """
    end = time.monotonic() + duration_s
    number = 0
    while True:
        yield number
        number += 1
        if time.monotonic() >= end:
            return
        if period_s:
            time.sleep(period_s)


def tried() -> contextlib.suppress:
    """What an attack does that the gateway may well end."""
    return contextlib.suppress(OSError)
