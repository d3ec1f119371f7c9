"""What writers and readers journaled, and whether it agrees with what is stored.

Writers: every request is stored once, with the ids that were answered. Of a pair, once by each
gateway that it was sent to (each store of it, if one was lost).

Readers: what comes over one connection is a part of what is stored, of each server, without a gap,
a double or another order. It never begins behind what was not acknowledged, and never before what
was: not while the same gateway is active, not when that ended by itself, and when it was killed
only before what was acknowledged in the last seconds, which are measured. Of a pair, each gateway
has a position of its own (each store of it).
"""

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge.model import Event, EventId, JsonPayload
from tests.torture.edge_client import TYPE, read
from tests.torture.ledger import ViolationError

MAX_LOST_S: Final = 5.0
"""Acknowledgements that a gateway knew for so long outlive ``kill -9``. They are written every
0.2 s, if the machine has time for it."""


FIRST: Final = 1
"""The gateway that is active in the end; of a pair, the preferred one."""


class End(NamedTuple):
    """A gateway ceased to be the active one.

    Attributes:
        since_s: when it was told to, or killed.
        at_s: when it had ended, at the latest.
        is_kill: whether it was killed.
        gateway: which one of a pair.
        is_lost: whether its store was lost, or set back, before it returned.
    """

    since_s: float
    at_s: float
    is_kill: bool
    gateway: int = FIRST
    is_lost: bool = False


class Part(NamedTuple):
    """What a reader got over one connection.

    Attributes:
        run: how many gateways had ended before; None: one did meanwhile.
        connect_s: when it began to connect.
        first_s: when the first events came.
        ids: of the events.
    """

    run: int | None
    connect_s: float
    first_s: float
    ids: list[EventId]


class Known(NamedTuple):
    """An acknowledgement of which the gateway has said that it has read it.

    Attributes:
        run: as of :class:`Part`.
        at_s: when.
        ids: the last events, of each server.
    """

    run: int
    at_s: float
    ids: Sequence[EventId]


class History:
    """See the module.

    Args:
        directory: of the journals.
        stored: all events, as each server has them.
        ends: of gateways, in their order.
    """

    def __init__(self, directory: Path, stored: Iterable[Event], ends: Sequence[End]) -> None:
        self._directory = directory
        self._ends = ends
        self._stored = [event for event in stored if event.type[0] == TYPE]
        self._by_server: dict[int, list[EventId]] = {}
        for event in sorted(self._stored, key=lambda i: i.id):
            self._by_server.setdefault(event.id.server, []).append(event.id)
        self.n_twice = 0
        self.n_read_again = 0
        self.lost_s = 0.0

    @property
    def n_events(self) -> int:
        """Events that are stored."""
        return len(self._stored)

    # --- writers --------------------------------------------------------------------------

    def check_writers(self) -> int:
        """Check that each request is stored once by each gateway that it was sent to.

        Returns:
            Requests that were sent again.

        Raises:
            ViolationError: one was lost, stored in part, or twice.
        """
        copies: dict[tuple[int, int], dict[tuple[int, int], list[Event]]] = {}
        for event in self._stored:
            assert isinstance(event.payload, JsonPayload)
            request, _ = event.payload.value()
            sessions = copies.setdefault((int(event.type[1]), request), {})
            sessions.setdefault((event.id.server, event.id.session), []).append(event)
        n_again = 0
        for path in sorted(self._directory.glob("writer-*")):
            writer = int(path.name.removeprefix("writer-"))
            lines = [*read(path)]
            begun = Counter(i.request for i in lines if i.what == "begin")
            n_again += sum(begun.values()) - len(begun)
            answers = {i.request: [*i.ids] for i in lines if i.what == "answer"}
            for request in begun:
                found = copies.pop((writer, request), {})
                self._check_request(f"{writer}-{request}", begun[request], found, answers)
        if copies:
            raise ViolationError(f"{len(copies)} requests are stored that nobody sent")
        return n_again

    def _check_request(
        self,
        name: str,
        n_begun: int,
        sessions: Mapping[tuple[int, int], Sequence[Event]],
        answers: Mapping[int, list[EventId]],
    ) -> None:
        request = int(name.partition("-")[2])
        ids = [[event.id for event in events] for events in sessions.values()]
        if request not in answers:
            raise ViolationError(f"request {name} was not answered")
        if answers[request] not in ids:
            raise ViolationError(f"request {name}: answered with {answers[request]}, not {ids}")
        for events in sessions.values():
            parts = [i.payload.value()[1] for i in events if isinstance(i.payload, JsonPayload)]
            if parts != [*range(request % 3 + 1)]:
                raise ViolationError(f"request {name} is stored in part: {parts}")
        if len(ids) > 1:
            self.n_twice += 1
            n_stores = Counter({i.gateway for i in self._ends})
            n_stores.update(i.gateway for i in self._ends if i.is_lost)
            copies = Counter(server for server, _ in sessions)
            if len(ids) > n_begun or not copies <= n_stores:
                raise ViolationError(f"request {name} is stored twice: {ids}")

    # --- readers --------------------------------------------------------------------------

    def check_readers(self) -> int:
        """Check what each cursor's readers got.

        Returns:
            Cursors.

        Raises:
            ViolationError: an event was missed, came in another order or twice over one
                connection, or a cursor went back.
        """
        cursors: dict[str, list[Path]] = {}
        for path in sorted(self._directory.glob("reader-*")):
            cursors.setdefault(path.name.partition(".")[0], []).append(path)
        for name, paths in cursors.items():
            parts: list[Part] = []
            acks: list[tuple[float, Sequence[EventId]]] = []
            known: list[Known] = []
            for path in paths:
                self._read(path, parts, acks, known)
            self._check_parts(name, parts, _Greatest(acks))
            self._check_positions(name, parts, known)
        return len(cursors)

    def _read(
        self,
        path: Path,
        parts: list[Part],
        acks: list[tuple[float, Sequence[EventId]]],
        known: list[Known],
    ) -> None:
        connect_s = 0.0
        run: int | None = None
        is_new = False
        for line in read(path):
            if line.what == "connect":
                connect_s = line.at_s
            elif line.what == "open":
                run, is_new = self._run_of(connect_s, line.at_s), True
            elif line.what == "ack":
                acks.append((line.at_s, line.ids))
            elif line.what == "known" and run is not None:
                known.append(Known(run, line.at_s, line.ids))
            elif line.what == "got" and is_new:
                parts.append(Part(run, connect_s, line.at_s, [*line.ids]))
                is_new = False
            elif line.what == "got":
                parts[-1].ids.extend(line.ids)

    def _run_of(self, connect_s: float, open_s: float) -> int | None:
        run = sum(end.at_s <= connect_s for end in self._ends)
        return run if run == sum(end.since_s < open_s for end in self._ends) else None

    def _check_parts(self, name: str, parts: Sequence[Part], acked: "_Greatest") -> None:
        came = Counter(i for part in parts for i in part.ids)
        if came.keys() != {event.id for event in self._stored}:
            raise ViolationError(f"{name}: {len(came)} events came, {self.n_events} are stored")
        self.n_read_again += came.total() - len(came)
        for part in parts:
            for server, ids in _by_server(part.ids).items():
                stored = self._by_server[server]
                begin = bisect.bisect_left(stored, ids[0])
                if ids != stored[begin : begin + len(ids)]:
                    raise ViolationError(f"{name}: what came behind {ids[0]} is not what is stored")
                dealt_with = acked.find(server, part.first_s)
                if begin and (dealt_with is None or dealt_with < stored[begin - 1]):
                    raise ViolationError(f"{name}: {ids[0]} came first, behind {dealt_with}")

    def _check_positions(self, name: str, parts: Sequence[Part], known: Sequence[Known]) -> None:
        by_run: dict[int, list[Known]] = {}
        by_store: dict[tuple[int, int], list[Known]] = {}
        for i in known:
            by_run.setdefault(i.run, []).append(i)
            by_store.setdefault(self._store_of(i.run), []).append(i)
        kept_by = {
            store: _Greatest([(i.run, i.ids) for i in of_it if not self._may_be_lost(i)])
            for store, of_it in by_store.items()
        }
        for part in parts:
            if part.run is None:
                continue
            now = [(i.at_s, i.ids) for i in by_run.get(part.run, ()) if i.at_s < part.connect_s]
            store = self._store_of(part.run)
            kept = kept_by.get(store, _Greatest(()))
            before = (i for i in reversed(range(part.run)) if self._store_of(i) == store)
            lost = [i for i in by_run.get(next(before, -1), ()) if self._may_be_lost(i)]
            for server, ids in _by_server(part.ids).items():
                for position in (
                    _Greatest(now).find(server, part.connect_s),
                    kept.find(server, part.run),
                ):
                    if position is not None and ids[0] <= position:
                        raise ViolationError(f"{name}: it went back from {position} to {ids[0]}")
                for i in lost:
                    if any(j.server == server and j >= ids[0] for j in i.ids):
                        self.lost_s = max(self.lost_s, self._ends[i.run].since_s - i.at_s)

    def _may_be_lost(self, known: Known) -> bool:
        if known.run == len(self._ends):
            return True  # nobody looks
        end = self._ends[known.run]
        return end.since_s - known.at_s < (MAX_LOST_S if end.is_kill else 0.0)

    def _store_of(self, run: int) -> tuple[int, int]:
        """The gateway that was active, and how many of its stores had been lost."""
        gateway = self._ends[run].gateway if run < len(self._ends) else FIRST
        return gateway, sum(i.is_lost for i in self._ends[:run] if i.gateway == gateway)


class _Greatest:
    """The greatest id of each server before a moment.

    Args:
        moments: each with ids.
    """

    def __init__(self, moments: Iterable[tuple[float, Sequence[EventId]]]) -> None:
        self._found: dict[int, tuple[list[float], list[EventId]]] = {}
        for moment, ids in sorted(moments, key=lambda i: i[0]):
            for event_id in ids:
                times, greatest = self._found.setdefault(event_id.server, ([], []))
                times.append(moment)
                greatest.append(max(event_id, greatest[-1]) if greatest else event_id)

    def find(self, server: int, before: float) -> EventId | None:
        """See the class; None: there is none."""
        times, greatest = self._found.get(server, ([], []))
        index = bisect.bisect_left(times, before)
        return greatest[index - 1] if index else None


def _by_server(ids: Iterable[EventId]) -> dict[int, list[EventId]]:
    found: dict[int, list[EventId]] = {}
    for event_id in ids:
        found.setdefault(event_id.server, []).append(event_id)
    return found
