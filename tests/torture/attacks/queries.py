"""What a client can do by asking and subscribing: much to look for, and nobody to answer."""

import contextlib
import threading
import time
from typing import Any, Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.wire import (
    Peer,
    event,
    latest_req,
    register_req,
    timeseries_req,
    tried,
    until,
)

_ASKING_S: Final = 8.0


def prepare_types(target: Target) -> None:
    """Register 100,000 types of three segments."""
    events = [event(["app", f"{i % 317}", f"{i}"]) for i in range(target.count(100_000))]
    wire.register(target.mariner, events, 5_000)


def prepare_events(target: Target) -> None:
    """Register 400,000 events of 2,000 types."""
    events = [event(["app", f"{i % 2_000}"], i) for i in range(target.count(400_000))]
    wire.register(target.mariner, events, 5_000)


def _asking(target: Target, n_peers: int, make: Any, name: str = "insider") -> Facts:
    """Ask on several connections, a few queries under way on each; answers are read."""
    n_answered = 0
    lock = threading.Lock()
    end = time.monotonic() + target.duration(_ASKING_S)

    def ask() -> None:
        nonlocal n_answered
        with tried(), Peer(target.mariner, name) as peer:
            peer.socket.settimeout(_ASKING_S * 4)
            for number in range(4):
                peer.send(make(number))
            while time.monotonic() < end:
                if b'"query_res"' in peer.receive_raw()[:200]:
                    with lock:
                        n_answered += 1
                        number += 1
                    peer.send(make(number))

    threads = [threading.Thread(target=ask) for _ in range(target.count(n_peers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"answers/s": n_answered / target.duration(_ASKING_S)}


def many_patterns(target: Target) -> Facts:
    """Queries with 256 patterns, each of which every type has to be compared with."""

    def query(number: int) -> Any:
        patterns = [["app", "?", f"no {number} {i}"] for i in range(256)]
        return timeseries_req(number, patterns, max_results=1)

    return _asking(target, 4, query)


def many_latest(target: Target) -> Facts:
    """The same for the latest of each type."""

    def query(number: int) -> Any:
        return latest_req(number, [["app", "?", f"no {number} {i}"] for i in range(256)])

    return _asking(target, 4, query)


def newest(target: Target) -> Facts:
    """The newest event of all that one may see: all types have to be found for it."""
    return _asking(target, 4, lambda number: timeseries_req(number, [["*"]], max_results=1))


def all_latest(target: Target) -> Facts:
    """The latest of all types, 100,000 events in an answer."""
    return _asking(target, 4, lambda number: latest_req(number, [["*"]]))


def rights_by_patterns(target: Target) -> Facts:
    """1,000 patterns against 20 rights, for each query anew."""

    def query(number: int) -> Any:
        patterns = [["?", f"{number}.{i}", "*"] for i in range(1_000)]
        return timeseries_req(number, patterns, max_results=1)

    return _asking(target, 4, query, "entitled")


def wide_subscriptions(target: Target) -> Facts:
    """20 subscriptions of 1,000 patterns by a client with 200 rights."""
    patterns = [["?", f"{i}", "*"] for i in range(1_000)]
    peers = []
    for _ in range(target.count(20)):
        with tried():
            peers.append(Peer(target.mariner, "rights", patterns))
    time.sleep(target.duration(1))
    for peer in peers:
        peer.close()
    return {"subscribed": len(peers)}


def many_subscriptions(target: Target) -> Facts:
    """Ten subscribers of 1,000 types each, and events of these types."""
    n_types = target.count(10_000, 10)
    n_events = target.count(200_000, 100)
    per_second = []
    peers: list[Peer] = []
    for is_subscribed in (False, True):
        if is_subscribed:
            for i in range(10):
                types = [["app", f"{i * n_types // 10 + j}"] for j in range(n_types // 10)]
                with tried():
                    peers.append(Peer(target.mariner, "insider", types))
            for peer in peers:
                threading.Thread(target=_read_all, args=[peer], daemon=True).start()
        began = time.monotonic()
        with Peer(target.mariner) as peer:
            _register_all(peer, n_types, n_events, 20.0)
            per_second.append(n_events / (time.monotonic() - began))
    return {
        "subscribed": len(peers),
        "events/s without": per_second[0],
        "events/s": per_second[1],
        "share of events/s": per_second[1] / per_second[0],
    }


def _register_all(peer: Peer, n_types: int, n_events: int, timeout_s: float) -> None:
    """Register, eight requests under way, until all is done or it took too long."""
    per_request = 100
    frames = [
        wire.encode(
            register_req(i, [event(["app", f"{(i + j) % n_types}"]) for j in range(per_request)])
        )
        for i in range(0, min(n_types, n_events), per_request)
    ]
    n_requests = n_events // per_request
    n_sent = n_answered = 0
    end = time.monotonic() + timeout_s
    while n_answered < n_requests and time.monotonic() < end:
        while n_sent < n_requests and n_sent - n_answered < 8:
            peer.socket.sendall(frames[n_sent % len(frames)])
            n_sent += 1
        if b'"register_res"' in peer.receive_raw()[:200]:
            n_answered += 1


def _read_all(peer: Peer) -> None:
    try:
        while True:
            peer.receive_raw()
    except (OSError, ValueError):
        peer.socket.close()


def _costly(number: int) -> Any:
    # looks at every event of every type, and finds nothing
    payload = {"payload_type": "json", "data": "there is none"}
    return timeseries_req(number, [["*"]], payload=payload)


def ask_and_leave(target: Target) -> Facts:
    """20 connections that ask for what takes long, 64 times each, and leave at once; thrice."""
    n_asked = 0
    for _ in range(3):
        for _ in range(target.count(20)):
            with tried(), Peer(target.mariner) as peer:
                peer.socket.sendall(b"".join(wire.encode(_costly(i)) for i in range(64)))
                n_asked += 64
        time.sleep(target.duration(1))
    return {"asked": n_asked}


def costly_queries(target: Target) -> Facts:
    """Eight connections that ask for what takes long, and wait for it."""
    return _asking(target, 8, _costly)


def large_answers(target: Target) -> Facts:
    """Eight connections that ask for 4,096 events at a time."""
    return _asking(target, 8, lambda number: timeseries_req(number, [["*"]]))


def many_ids(target: Target) -> Facts:
    """Eight connections that ask for 4,096 events by their ids, which there are not."""
    ids = [{"server": 1, "session": 1 << 40, "instance": i} for i in range(4_096)]
    return _asking(target, 8, lambda number: timeseries_req(number, [["*"]], ids=ids))


def prepare_documents(target: Target) -> None:
    """Register 300 payloads of 250 kB each, of many small values."""
    document = [0] * target.count(125_000)
    for _ in range(target.count(30)):
        wire.register(target.mariner, [event(["app", "document"], document)] * 10, 10)


def compared_documents(target: Target) -> Facts:
    """Four connections that ask for a payload that each stored one has to be compared with."""
    payload = {"payload_type": "json", "data": [0] * target.count(124_000)}
    return _asking(target, 4, lambda number: timeseries_req(number, [["*"]], payload=payload))


def new_types_for_subscribers(target: Target) -> Facts:
    """20 subscribers of 1,000 patterns each, and 40,000 new types that none of them wants."""
    patterns = [["app", "?", f"{i}", "*"] for i in range(target.count(1_000))]
    n = target.count(40_000)
    with contextlib.ExitStack() as stack, tried():
        for _ in range(target.count(20)):
            stack.enter_context(Peer(target.mariner, "insider", patterns))
        began = time.monotonic()
        types = [event(["app", f"{i}", f"no {i}"]) for i in range(n)]
        wire.register(target.mariner, types, 1_000)
        return {"events/s": n / (time.monotonic() - began)}
    return {"events/s": 0}


def unique_types(target: Target) -> Facts:
    """Eight connections that ask for the first event of each type, oldest first."""
    return _asking(
        target,
        8,
        lambda number: timeseries_req(number, [["*"]], unique_type=True, order="ASCENDING"),
    )


def come_and_go(target: Target) -> Facts:
    """A client that connects with 1,000 patterns and leaves, on and on."""
    patterns = [["app", "?", f"{i}"] for i in range(1_000)]
    n_inits = 0
    for _ in until(target.duration(_ASKING_S)):
        with tried():
            Peer(target.mariner, "insider", patterns).close()
            n_inits += 1
    return {"connections": n_inits}


ATTACKS: Final = {
    "many-ids": Attack(many_ids, prepare_events),
    "compared-documents": Attack(compared_documents, prepare_documents),
    "new-types-for-subscribers": Attack(new_types_for_subscribers),
    "many-patterns": Attack(many_patterns, prepare_types),
    "many-latest": Attack(many_latest, prepare_types),
    "newest": Attack(newest, prepare_types),
    "all-latest": Attack(all_latest, prepare_types),
    "rights-by-patterns": Attack(rights_by_patterns, prepare_types),
    "wide-subscriptions": Attack(wide_subscriptions),
    "many-subscriptions": Attack(
        many_subscriptions, limits=Limits(at_least={"share of events/s": 0.25})
    ),
    "ask-and-leave": Attack(ask_and_leave, prepare_events),
    "costly-queries": Attack(costly_queries, prepare_events),
    "large-answers": Attack(large_answers, prepare_events),
    "unique-types": Attack(unique_types, prepare_events),
    "come-and-go": Attack(come_and_go),
}
