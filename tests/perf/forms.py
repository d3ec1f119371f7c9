"""What a registration costs by the form of its message: CPU of the server, ours only.

Other languages write other JSON: sorted keys, keys that are null, other properties. The messages of
each form are made before, and sent over a plain socket, so that the client costs little. All forms
are measured in turn by one server, and compared with the compact one.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from eventer_bridge.net.framing import encode_frame
from tests.perf.report import Bound, Measure, Sample
from tests.perf.scenarios import Sizes
from tests.perf.sides import OURS as SIDE
from tests.perf.sides import new_directory
from tests.perf.workload import WrongAnswerError
from tests.support.gateway import gateway
from tests.support.hat_peers import HOST

Json = dict[str, Any]

EVENTS: Final = 100
"""Of a message, if its form does not say otherwise."""

TYPES: Final = 200

WINDOW_BYTES: Final = 1 << 19
"""Of messages that are not answered."""


class Form(NamedTuple):
    """How messages are written.

    Attributes:
        name: of the row.
        title: of the row.
        target: how many times the CPU of the compact form it may take; 0: it is only recorded.
        write: makes a message from a request.
        n_events: of a message.
        server: how the server is started; those of one kind share one.
        share: divisor of the events that are registered in this form.
    """

    name: str
    title: str
    target: float
    write: Callable[[Json], bytes]
    n_events: int = EVENTS
    server: str = "plain"
    share: int = 1


def _compact(request: Json) -> bytes:
    return json.dumps(request, separators=(",", ":")).encode()


def _sorted(request: Json) -> bytes:
    return json.dumps(request, separators=(",", ":"), sort_keys=True).encode()


def _reordered(request: Json) -> bytes:
    """Its first event is another way round: one message of each 8."""
    if request["register_id"] % 8 == 0:
        return _sorted(request)
    return _compact(request)


def _indented(request: Json) -> bytes:
    return json.dumps(request, indent=1).encode()


def _with_null_key(request: Json) -> bytes:
    return _compact({**request, "request_key": None})


def _with_key(request: Json) -> bytes:
    return _compact({**request, "request_key": f"{request['register_id']:032d}"})


def _with_more(request: Json) -> bytes:
    return _compact(
        {**request, "register_events": [{**i, "trace": "abc"} for i in request["register_events"]]}
    )


def _binary(request: Json) -> bytes:
    payload = {"payload_type": "binary", "data_type": "x", "data": "AAECAwQFBgcICQoLDA0ODw==" * 4}
    payload["data"] = payload["data"].replace("=", "A")
    return _compact(
        {
            **request,
            "register_events": [{**i, "payload": payload} for i in request["register_events"]],
        }
    )


def _with_escapes(request: Json) -> bytes:
    return _compact(request).replace(b'"type"', b'"t\\u0079pe"')


def _new_types(request: Json) -> bytes:
    """Each type is read, checked, paid for, and put in a tree, five dicts and a family, once.

    That is 10 us of Python, where an event of a known type takes 3 us in all: reading 1.3, whether
    it is known 1.0, checking 1.8 (of which remembering it 0.9), its price 1.2, the tree 0.8, its id
    and name 1.2, rows and order 1.5, cold memory and the collector the rest. So the target is not
    met: without one of these, or compiling them, it cannot be.
    """
    number = request["register_id"]
    events = [
        {**i, "type": ["new", str(number), str(n)]}
        for n, i in enumerate(request["register_events"])
    ]
    return _compact({**request, "register_events": events})


FORMS: Final = (
    Form("form-compact", "compact", 0, _compact),
    Form("form-indented", "indented", 0, _indented),
    Form("form-sorted", "sorted keys", 1.5, _sorted),
    Form("form-one-head", "one of 8 messages sorted", 1.5, _reordered),
    Form("form-null-key", "request_key: null", 1.5, _with_null_key),
    Form("form-key", "with a request key", 0, _with_key),
    Form("form-extra", "an extra property", 3, _with_more),
    Form("form-escapes", "escapes in keys", 0, _with_escapes),
    Form("form-binary", "binary payloads", 1.5, _binary),
    Form("form-1000", "1,000 events", 1.5, _compact, 1_000),
    Form("form-new-types", "new types", 3, _new_types, share=10),
    Form("form-single", "1 event a message", 0, _compact, 1, share=4),
    Form("form-schema", "a client with payload schemas", 0, _compact, server="schema"),
    Form("form-modules", "beside a module", 0, _compact, server="modules"),
    Form("form-uncompiled", "not compiled", 0, _compact, server="uncompiled"),
)

_SERVERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "schema": {
        "clients": [
            {
                "name": "app",
                "token": "secret",
                "subscriptions": [["*"]],
                "register_events": [{"subscriptions": [["*"]], "schema_id": "urn:test:anything"}],
            }
        ],
        "schemas": [{"$id": "urn:test:anything", "type": "object"}],
    },
    "modules": {"modules": [{"module": "eventer_bridge.modules.audit"}]},
    "uncompiled": {"program": "tests.perf.uncompiled"},
}


def measures(_: Sizes) -> list[Measure]:
    """The rows, without values."""
    return [
        Measure(
            form.name,
            f"register: {form.title}, CPU over compact",
            "x",
            form.target,
            Bound.AT_MOST if form.target else Bound.NONE,
        )
        for form in FORMS
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value of each round to each of the wanted rows.

    Raises:
        ChildError: a server failed.
        WrongAnswerError: an answer was not right.
    """
    forms = [i for i in FORMS if i.name in wanted or i.name == "form-compact"]
    compact_us: list[float] = []
    for server in dict.fromkeys(i.server for i in forms):
        path = new_directory(directory, SIDE, f"forms-{server}")
        async with gateway(path, **_SERVERS[server]) as ours:
            process, first = psutil.Process(ours.pid), 1
            client = await _Client.connect(ours.port)
            for number in range(sizes.rounds + 1):
                for form in forms:
                    if form.server != server:
                        continue
                    n_events = sizes.form_events // form.share
                    messages = [*_messages(form, first, n_events)]
                    first += len(messages)
                    us = await client.register(messages, form.n_events, process)
                    if number == 0:  # warms up
                        continue
                    if form.name == "form-compact":
                        compact_us.append(us)
                    if form.name in wanted:
                        base_us = compact_us[min(number, len(compact_us)) - 1]
                        wanted[form.name].add(SIDE.name, Sample(us / base_us, cpu_us=us))
            client.close()


def _messages(form: Form, first: int, n_events: int) -> Iterator[bytes]:
    n_messages = max(2, n_events // form.n_events)
    for register_id in range(first, first + n_messages):
        events = [
            {
                "type": ["plant", str((register_id * form.n_events + i) % TYPES), "value"],
                "source_timestamp": {"s": 1_700_000_000 + register_id, "us": i},
                "payload": {
                    "payload_type": "json",
                    "data": {"value": i * 1.5, "unit": "°C", "quality": "good", "n": register_id},
                },
            }
            for i in range(form.n_events)
        ]
        request = {
            "msg_type": "register_req",
            "register_id": register_id,
            "register_events": events,
        }
        yield encode_frame(form.write(request))


def _cpu_s(process: psutil.Process) -> float:
    """CPU time of all threads of a process; finer than ``cpu_times``, which counts in 10 ms."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum([int(i.read_text(encoding="ascii").split()[0]) for i in tasks]) / 1e9


class _Client:
    """Sends messages over a plain socket, and counts answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> "_Client":
        client = cls(*await asyncio.open_connection(HOST, port))
        init: Json = {
            "msg_type": "init_req",
            "client_name": "app",
            "client_token": "secret",
            "subscriptions": [],
            "server_id": None,
            "persisted": False,
        }
        client._writer.write(encode_frame(_compact(init)))
        await client._answer(b'"success":true')
        return client

    async def register(
        self, messages: list[bytes], n_events: int, process: psutil.Process
    ) -> float:
        """CPU of the server in µs for each event."""
        before_s = _cpu_s(process)
        waiting: list[int] = []
        n_waiting = 0
        for message in messages:
            self._writer.write(message)
            waiting.append(len(message))
            n_waiting += len(message)
            while n_waiting > WINDOW_BYTES:
                await self._answer(b'"success":true')
                n_waiting -= waiting.pop(0)
        for _ in waiting:
            await self._answer(b'"success":true')
        return (_cpu_s(process) - before_s) * 1e6 / (len(messages) * n_events)

    async def _answer(self, part: bytes) -> None:
        while True:
            n_size = (await self._reader.readexactly(1))[0]
            size = int.from_bytes(await self._reader.readexactly(n_size), "big")
            message = await self._reader.readexactly(size)
            if b'"msg_type":"ping_req"' in message[:40]:
                continue
            if part not in message[:100]:
                raise WrongAnswerError(message[:200].decode())
            return

    def close(self) -> None:
        self._writer.close()
