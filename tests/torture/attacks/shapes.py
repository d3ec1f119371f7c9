"""What a client can do by how it sends and reads: half frames, answers that it does not read."""

import threading
import time
from typing import Any, Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.strangers import Crowd
from tests.torture.attacks.wire import Peer, event, timeseries_req, tried, until

_HOLD_S: Final = 10.0


def half_frames(target: Target) -> Facts:
    """100 connections with all of a full frame but its last bytes."""
    half = wire.frame(b" " * target.count(15 << 20))[:-1]
    peers = []
    for _ in range(target.count(100)):
        with tried():
            peer = Peer(target.mariner)
            peer.socket.settimeout(1)
            peers.append(peer)
            peer.socket.sendall(half)
    time.sleep(target.duration(_HOLD_S))
    for peer in peers:
        peer.close()
    return {"connections": len(peers)}


def prepare_large(target: Target) -> None:
    """Register 15 MB in 100 events."""
    text = "x" * target.count(150_000)
    wire.register(target.mariner, [event(["app", "large"], text) for _ in range(100)], 10)


def unread_answers(target: Target) -> Facts:
    """50 connections that ask for 15 MB each, and do not read."""
    return _deaf(target, 50, lambda i: timeseries_req(i, [["app", "large"]]), 16)


def unread_pings(target: Target) -> Facts:
    """50 connections that ping 100,000 times each, and do not read."""
    return _deaf(target, 50, lambda i: {"msg_type": "ping_req", "ping_id": i}, 100_000)


def _deaf(target: Target, n_peers: int, make: Any, n: int) -> Facts:
    data = b"".join(wire.encode(make(i)) for i in range(target.count(n)))
    peers = []
    for _ in range(target.count(n_peers)):
        with tried():
            peer = Peer(target.mariner)
            peer.socket.settimeout(0.2)
            peers.append(peer)
            peer.socket.sendall(data)
    time.sleep(target.duration(_HOLD_S))
    for peer in peers:
        peer.close()
    return {"connections": len(peers)}


def deaf_subscribers(target: Target) -> Facts:
    """50 subscribers that do not read, and 100 MB that they are told of."""
    peers = [Peer(target.mariner, "insider", [["app", "*"]]) for _ in range(target.count(50))]
    events = [event(["app", f"{i}"], "x" * 100_000) for i in range(target.count(1_000))]
    wire.register(target.mariner, events, 10)
    time.sleep(target.duration(_HOLD_S / 2))
    for peer in peers:
        peer.close()
    return {"subscribers": len(peers)}


def ping_flood(target: Target) -> Facts:
    """Four connections that ping as fast as they are answered, 1,000 at a time."""
    data = b"".join(wire.encode({"msg_type": "ping_req", "ping_id": i}) for i in range(1_000))
    n_bytes = [0] * 4

    def flood(number: int) -> None:
        with tried(), Peer(target.mariner) as peer:
            for _ in until(target.duration(5)):
                peer.socket.sendall(data)
                n_bytes[number] += len(peer.socket.recv(1 << 20))

    threads = [threading.Thread(target=flood, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"answered bytes": sum(n_bytes)}


def byte_by_byte(target: Target) -> Facts:
    """100 connections that send a frame of 16 MB a byte at a time."""
    peers = [Peer(target.mariner) for _ in range(target.count(100))]
    for peer in peers:
        peer.socket.sendall(b"\x04\x00\xff\xff\xff")
    n_bytes = 0
    for _ in until(target.duration(5)):
        for peer in peers:
            with tried():
                peer.socket.sendall(b" ")
                n_bytes += 1
    for peer in peers:
        peer.close()
    return {"connections": len(peers), "sent bytes": n_bytes}


def crowd_of_one(target: Target) -> Facts:
    """10,000 connections of one client, all initialised."""
    greeting = wire.encode(wire.init_req("insider", "insider", [["app", "*"]]))
    crowd = Crowd([target.mariner], target.count(10_000), lambda port: greeting)
    return crowd.hold(target.duration(_HOLD_S), is_persistent=False)


ATTACKS: Final = {
    "crowd-of-one": Attack(crowd_of_one),
    "half-frames": Attack(half_frames),
    "unread-answers": Attack(unread_answers, prepare_large),
    "unread-pings": Attack(unread_pings),
    "deaf-subscribers": Attack(deaf_subscribers, limits=Limits(query_p99_s=1.0)),
    "ping-flood": Attack(ping_flood),
    "byte-by-byte": Attack(byte_by_byte),
}
