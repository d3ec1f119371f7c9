"""The measuring client: answers are counted however they arrive, and times are right."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.perf import client, redis_wire
from tests.perf.client import Connection, Exchange, Progress, cpu_s, run_exchanges
from tests.perf.wires import MARINER, Bounds, Wire, cut_frames, wire_of

pytestmark = pytest.mark.perf

REDIS_ANSWERS = (b"$3\r\n1-0\r\n", b"-ERR wrong\r\n", b"$4\r\n1-10\r\n", b"+PONG\r\n")


@pytest.mark.parametrize(
    ("wire", "answers"),
    [
        (MARINER, [MARINER.encode({"a": "b" * i}) for i in (0, 1, 300, 70_000, 2)]),
        (wire_of("redis"), REDIS_ANSWERS),
    ],
)
def test_answers_are_cut_wherever_the_bytes_end(wire: Wire, answers: list[bytes]) -> None:
    data = b"".join(answers)
    sizes = [sum(map(len, answers[:i])) for i in range(len(answers) + 1)]
    for end in {*range(0, len(data), 7), *(size + i for size in sizes for i in (-1, 0, 1))}:
        if 0 <= end <= len(data):
            n_whole = sum(size <= end for size in sizes[1:])
            assert [stop for _, stop in wire.cut(data[:end])] == sizes[1 : n_whole + 1]


def test_frames_are_cut_without_their_header() -> None:
    data = b"\x01\x02{}\x02\x00\x03[1]"
    assert [data[begin:end] for begin, end in cut_frames(data)] == [b"{}", b"[1]"]


def test_answers_of_redis() -> None:
    assert [redis_wire.decode(i) for i in REDIS_ANSWERS] == [
        {"msg_type": "added", "id": (1, 0)},
        {"msg_type": "text", "text": "-ERR wrong"},
        {"msg_type": "added", "id": (1, 10)},
        {"msg_type": "init_res", "status": "OPERATIONAL"},
    ]


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connection, socket.socket]]:
    """A connection to nobody, and the socket at its other end."""
    near, far = socket.socketpair()
    far.settimeout(20)
    connection = Connection.__new__(Connection)
    connection.socket, connection.wire = near, Wire(MARINER.encode, _cut_digits, MARINER.decode)
    with near, far:
        yield connection, far


def _cut_digits(data: bytes) -> Bounds:
    """Each answer is a digit."""
    return [(i, i + 1) for i in range(len(data))]


def test_never_more_requests_are_unanswered(peer: tuple[Connection, socket.socket]) -> None:
    connection, far = peer
    exchange = Exchange(connection, [b"a", b"bb", b"c", b"d", b"e"], in_flight=2)
    running = threading.Thread(target=run_exchanges, args=[[exchange]])
    running.start()
    try:
        for expected, answers in ((b"abb", b"1"), (b"c", b"23"), (b"de", b"45")):
            assert far.recv(100) == expected
            far.sendall(answers)
    finally:
        far.shutdown(socket.SHUT_WR)
        running.join()
    assert exchange.answers() == [b"1", b"2", b"3", b"4", b"5"]
    assert exchange.is_over


def test_request_with_several_answers(peer: tuple[Connection, socket.socket]) -> None:
    connection, far = peer
    exchange = Exchange(connection, [b"a", b"b"], in_flight=1, answers_per_request=3)
    exchange.begin()
    for answers, is_over in ((b"12", False), (b"34", False), (b"56", True)):
        far.sendall(answers)
        exchange.receive()
        assert exchange.is_over is is_over
    assert far.recv(100) == b"ab"


def test_times_are_from_each_request_to_its_answer(
    peer: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Exchange(peer[0], [b"a", b"b", b"c", b"d"], in_flight=2)
    progress = [Progress(10, 2, 0), Progress(11, 3, 1), Progress(15, 4, 3), Progress(16, 4, 4)]
    monkeypatch.setattr(exchange, "_progress", progress)
    assert list(exchange.times_s()) == [1, 5, 4, 1]


def test_server_that_leaves_is_noticed(peer: tuple[Connection, socket.socket]) -> None:
    connection, far = peer
    far.close()
    with pytest.raises(ConnectionError):
        run_exchanges([Exchange(connection, [b"a"], in_flight=1)])


def test_silent_server_is_noticed(
    peer: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError, match="1 connections wait for answers"):
        run_exchanges([Exchange(peer[0], [b"a"], in_flight=1)])


def test_cpu_time_of_a_process_is_told() -> None:
    before = cpu_s([os.getpid()])
    begin = time.thread_time()
    while time.thread_time() < begin + 0.02:
        pass
    assert 0.02 <= cpu_s([os.getpid()]) - before < 1
    with pytest.raises(ProcessLookupError, match="no process 4194305"):
        cpu_s([4_194_305])  # more than Linux gives
