"""What a client can do by registering: types, payloads and requests that cost the others."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.wire import Peer, event, register_req, tried

_MAX_FRAME: Final = 16 << 20


_SENDING_S: Final = 60.0
"""Of an attack at the most, where the gateway lets it wait."""


def _send(target: Target, frames: Any, name: str = "insider") -> Facts:
    """Send frames one after the other; each is answered, or the end."""
    n_sent = n_answered = n_registered = largest = 0
    slowest = 0.0
    peer: Peer | None = None
    end = time.monotonic() + _SENDING_S
    for frame in frames:
        if time.monotonic() > end:
            break
        with tried():
            peer = peer or Peer(target.mariner, name)
            n_sent += 1
            began = time.monotonic()
            peer.socket.sendall(frame)
            answer = b""
            while b'"register_res"' not in answer[:200] and b"_res" not in answer[:200]:
                answer = peer.receive_raw()
            slowest = max(slowest, time.monotonic() - began)
            n_answered += 1
            n_registered += b'"success":true' in answer[:200]
            largest = max(largest, len(answer))
            continue
        if peer is not None:
            peer.close()
        peer = None
    return {
        "sent": n_sent,
        "answered": n_answered,
        "registered": n_registered,
        "largest answer bytes": largest,
        "slowest answer s": slowest,
    }


def huge_types(target: Target) -> Facts:
    """Types of 15.7 MB that may not be registered, each another one."""
    frames = (
        wire.encode(register_req(i, [event([f"{i}" + "\x7f" * target.count(15_700_000)])]))
        for i in range(target.count(60))
    )
    return _send(target, frames)


def many_refused_types(target: Target) -> Facts:
    """Many types that may not be registered: 1,000 bytes each, one request each."""
    frames = (
        wire.encode(register_req(i, [event([f"{i}" + "x" * 1_000])]))
        for i in range(target.count(100_000))
    )
    return _send(target, frames)


def wrong_payloads(target: Target) -> Facts:
    """Payloads of 1.6 MB each of whose items is wrong by its schema."""
    frame = _registration(["checked", "a"], b"[" + b"0," * target.count(800_000) + b"0]")
    return _send(target, [frame] * target.count(10), "checked")


def right_payloads(target: Target) -> Facts:
    """Payloads of 15 MB that satisfy their schema, item by item."""
    frame = _registration(["checked", "a"], b"[" + b"1," * target.count(7_500_000) + b"1]")
    return _send(target, [frame] * target.count(5), "checked")


def odd_integers(target: Target) -> Facts:
    """Full frames with an integer that is written as 1.0."""
    events = b'{"type":["app","a"],"source_timestamp":null,"payload":{"payload_type":"json","data":'
    events += b'"' + b"x" * 150 + b'"}},'
    n = min(target.count(65_000), (_MAX_FRAME - 1_000) // len(events))
    odd = b'{"type":["app","a"],"source_timestamp":{"s":1.0,"us":0},"payload":null}'
    return _send(target, [_request(events * n + odd)] * target.count(10))


def odd_frames_of_lists(target: Target) -> Facts:
    """The same with payloads of millions of lists, which take 20 times the memory once decoded."""
    payload = b"[" + b"[]," * target.count(5_000_000) + b"[]]"
    odd = (
        b'{"type":["app","a"],"source_timestamp":{"s":1.0,"us":0},'
        b'"payload":{"payload_type":"json","data":' + payload + b"}}"
    )
    return _send(target, [_request(odd)] * target.count(5))


def wrong_at_the_end(target: Target) -> Facts:
    """Full frames of 60,000 events, of which the last one breaks the contract."""
    events = b'{"type":["app","a"],"source_timestamp":null,"payload":null},'
    request = _request(events * target.count(60_000) + b'{"type":["app","a"],"payload":7}')
    return _send(target, [request] * target.count(20))


def duplicate_keys(target: Target) -> Facts:
    """Full frames in which a key is given a million times."""
    request = (
        b'{"msg_type":"register_req","register_id":1,'
        + b'"register_id":1,' * target.count(1_000_000)
        + b'"register_events":[]}'
    )
    return _send(target, [wire.frame(request)] * target.count(10))


def long_numbers(target: Target) -> Facts:
    """Integers of millions of digits, where the contract expects small ones."""
    digits = b"9" * target.count(15_000_000)
    request = b'{"msg_type":"ping_req","ping_id":' + digits + b"}"
    return _send(target, [wire.frame(request)] * target.count(5))


def long_exponents(target: Target) -> Facts:
    """Numbers that would have billions of digits, as many as are looked at exactly."""
    event = b'{"type":["app","a"],"source_timestamp":{"s":%b,"us":0},"payload":null}'
    events = [event % i for i in (b"9007199254740993.5", b"1e999999999", b"1e-999999999999999999")]
    odd = event % b"9007199254740993.00"
    frames = [_request(b",".join([odd] * n + [i])) for n in (400, 1_700) for i in events]
    return _send(target, frames * target.count(200))


def half_characters(target: Target) -> Facts:
    """Halves of characters, behind as many numbers as are searched for them."""
    payloads = [b"[" + b"1," * 64_000, b"[" + b"[1]," * 32_000, b"[" + b"1," * 8_000_000]
    frames = [_registration(["app", "a"], i + b'"\\ud800"]') for i in payloads]
    return _send(target, frames[:2] * target.count(200) + frames[2:] * target.count(10))


def deep_frames(target: Target) -> Facts:
    """Frames nested eight million times."""
    n = target.count(8_000_000)
    request = b'{"msg_type":"ping_req","ping_id":1,"x":' + b"[" * n + b"]" * n + b"}"
    return _send(target, [wire.frame(request)] * target.count(5))


def full_requests(target: Target) -> Facts:
    """Requests of 65,536 events, one after the other without a pause."""
    n = target.count(65_536)
    body = ",".join([json.dumps(event(["app", f"{i % 100}"], i)) for i in range(n)]).encode()
    return _pipelined(target, _request(body), target.count(40))


def full_requests_of_types(target: Target) -> Facts:
    """The same, each event of another type, all of which are known."""
    n = target.count(65_536)
    body = ",".join([json.dumps(event(["app", f"{i % 20_000}"], None)) for i in range(n)]).encode()
    return _pipelined(target, _request(body), target.count(40))


def large_payloads(target: Target) -> Facts:
    """Requests of 15 MB in one payload, one after the other without a pause."""
    frame = _registration(["app", "a"], b'"' + b"x" * target.count(15_000_000) + b'"')
    return _pipelined(target, frame, target.count(40))


def _pipelined(target: Target, frame: bytes, n: int) -> Facts:
    """Send as much as the gateway takes, and read its answers."""
    n_answered = 0
    with tried(), Peer(target.mariner) as peer:
        began = time.monotonic()
        sending = threading.Thread(target=_send_all, args=[peer, frame, n])
        sending.start()
        while n_answered < n and time.monotonic() - began < _SENDING_S:
            n_answered += b'"register_res"' in peer.receive_raw()[:200]
        peer.socket.shutdown(socket.SHUT_RDWR)
        sending.join()
    return {"answered": n_answered, "requests/s": n_answered / (time.monotonic() - began)}


def _send_all(peer: Peer, frame: bytes, n: int) -> None:
    with tried():
        for _ in range(n):
            peer.socket.sendall(frame)


def million_types(target: Target) -> Facts:
    """A million types, 5,000 in a request; goes on when it is refused."""
    n = target.count(1_000_000)
    return _types(target, lambda i: ["app", f"{i}"], n, 5_000)


def deep_types(target: Target) -> Facts:
    """50,000 types of 64 segments, none of which they share."""
    n = target.count(50_000)
    return _types(target, lambda i: ["app", *(f"{i}.{j}" for j in range(63))], n, 1_000)


def long_types(target: Target) -> Facts:
    """300,000 types of 1,000 bytes."""
    n = target.count(300_000)
    return _types(target, lambda i: ["app", f"{i:x<1000}"], n, 5_000)


def _types(target: Target, make: Callable[[int], list[str]], n: int, per_request: int) -> Facts:
    """Register so many types; where they are refused, try with fewer at a time."""
    n_made = n_refused = 0
    began = time.monotonic()
    with tried(), Peer(target.mariner) as peer:
        while n_made < n and n_refused < 100 and time.monotonic() - began < _SENDING_S:
            events = [event(make(n_made + i)) for i in range(min(per_request, n - n_made))]
            answer = peer.request(register_req(n_made, events), "register_res")
            if answer["success"]:
                n_made += len(events)
            else:
                n_refused += 1
                per_request = max(1, per_request // 10)
    return {"types": n_made, "refused": n_refused, "seconds": time.monotonic() - began}


def _registration(event_type: list[str], payload: bytes) -> bytes:
    head = json.dumps(event_type).encode()
    return _request(
        b'{"type":'
        + head
        + b',"source_timestamp":null,"payload":{"payload_type":"json","data":'
        + payload
        + b"}}"
    )


def _request(events: bytes) -> bytes:
    head = b'{"msg_type":"register_req","register_id":1,"register_events":['
    return wire.frame(head + events + b"]}")


_SMALL_ANSWER: Final = Limits(at_most={"largest answer bytes": 64 << 10})

_QUICK_QUERIES: Final = Limits(query_p99_s=0.050)

ATTACKS: Final = {
    "huge-types": Attack(huge_types, limits=_SMALL_ANSWER),
    "refused-types": Attack(many_refused_types, limits=_SMALL_ANSWER),
    "wrong-payloads": Attack(wrong_payloads, limits=_SMALL_ANSWER),
    "right-payloads": Attack(right_payloads),
    "odd-integers": Attack(odd_integers),
    "odd-frames-of-lists": Attack(odd_frames_of_lists),
    "wrong-at-the-end": Attack(wrong_at_the_end, limits=_SMALL_ANSWER),
    "duplicate-keys": Attack(duplicate_keys),
    "long-numbers": Attack(long_numbers),
    "long-exponents": Attack(long_exponents, limits=_SMALL_ANSWER),
    "half-characters": Attack(half_characters, limits=_SMALL_ANSWER),
    "deep-frames": Attack(deep_frames),
    "full-requests": Attack(full_requests, limits=_QUICK_QUERIES),
    "full-requests-of-types": Attack(full_requests_of_types, limits=_QUICK_QUERIES),
    "large-payloads": Attack(large_payloads),
    "million-types": Attack(million_types),
    "deep-types": Attack(deep_types),
    "long-types": Attack(long_types),
}
