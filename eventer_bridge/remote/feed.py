"""A feed of a remote Event Server's events: every one, once, in order (001, "server" query).

A feed connects, and reconnects whenever the connection is lost. Each time it first catches up,
with ``server`` queries from the last event that it delivered of each known server, while live
notifications wait; then it continues with those. It delivers whole sessions, those of a server in
the order of their ids::

    connect ─▶ queries from the last known id ─▶ notifications that came meanwhile ─▶ live
       ▲                                                                               │
       └───────────────────────────── connection lost ─────────────────────────────────┘

A session that cannot be delivered ends the connection, and nothing is delivered after it until it
is: the next connection begins when all deliveries under way have ended, where :data:`KnownCb` then
says.

Notifications are acknowledged when they are delivered, or at once while the feed catches up: some
servers (hat-event) write nothing to disk while they wait for that.

Catching up runs in slices, and gives way between them. Of a session that is too large for one
message (``core_limits.MAX_SESSION_BYTES``), the first events are delivered. What waits is bounded
in events and in memory, and is on the account of the process (``memory``).

Belongs to the event loop's thread.
"""

import asyncio
import enum
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple, Self, TypeAlias

from typing_extensions import override

from eventer_bridge import limits as core_limits
from eventer_bridge import slices
from eventer_bridge.core.validation import content_bytes
from eventer_bridge.errors import ClosedError, EventerBridgeError, RemoteProtocolError
from eventer_bridge.eventer.client import EventerClient, EventsCb
from eventer_bridge.memory import MemoryShare, account_of_process
from eventer_bridge.model import INT64_MAX, Event, EventId, QueryResult, QueryServerParams
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.connecting import keep_trying
from eventer_bridge.remote import limits
from eventer_bridge.resources import Resource, uncancellable
from eventer_bridge.slices import Steps

mlog = logging.getLogger(__name__)

_NOT_CONNECTED: Final = "feed is not connected"
_INTERRUPTED: Final = "feed interrupted"

ConnectCb: TypeAlias = Callable[[EventsCb], Awaitable[EventerClient]]
"""Connects; the client passes notifications to the callback."""

DeliverCb: TypeAlias = Callable[[Sequence[Event]], asyncio.Future[None]]
"""Takes the events of a session; done when it has them for good. If it fails, the feed
reconnects, and delivers the session again. The future is never cancelled."""

KnownCb: TypeAlias = Callable[[EventerClient], Awaitable[Mapping[int, EventId | None]]]
"""The servers to catch up with, and the last event that was delivered of each; None: none
was. Called after each connection; servers that only live notifications name are added."""


class FeedState(enum.Enum):
    """How far a feed is (names as in hat-event's ``synced`` events)."""

    CONNECTED = "CONNECTED"
    SYNCING = "SYNCING"
    SYNCED = "SYNCED"


class Feed(Resource):
    """See the module.

    Args:
        name: of the remote server in the log.
        connect, known, deliver: see their types.
        server_id: the only server whose events are accepted; None: events of all.
        on_client: called with each new connection, and with None when it is lost.
        on_missing: called with the last event that the remote server no longer has, of those behind
            what was delivered of a server, before what follows is delivered.
        on_left_out: the same, of events that it has and that are not delivered: they are too large,
            or not valid here.
        on_state: called with the state and, when SYNCED, the number of events caught up with.
        give_way: awaited now and then while it catches up; see ``slices.run``.

    Attributes:
        interruption: why the last connection or attempt ended, in the words of the log; None: there
            was none yet.
    """

    def __init__(
        self,
        name: str,
        connect: ConnectCb,
        known: KnownCb,
        deliver: DeliverCb,
        *,
        server_id: int | None = None,
        on_client: Callable[[EventerClient | None], None] = lambda client: None,
        on_state: Callable[[FeedState, int | None], None] = lambda state, count: None,
        on_missing: Callable[[EventId], None] = lambda last: None,
        on_left_out: Callable[[EventId], None] = lambda last: None,
        give_way: Callable[[], Awaitable[None]] = slices.next_turn,
    ) -> None:
        self.interruption: str | None = None
        self._name = name
        self._connect = connect
        self._known = known
        self._deliver = deliver
        self._server_id = server_id
        self._on_client = on_client
        self._on_state = on_state
        self._on_missing = on_missing
        self._on_left_out = on_left_out
        self._n_deletions: dict[int, int] = {}  # as told over this connection
        self._give_way = give_way
        self._loop = asyncio.get_running_loop()
        self._client: EventerClient | None = None
        self._positions: dict[int, EventId | None] = {}
        self._backlog: deque[Sequence[Event]] | None = None
        self._backlog_size = _NOTHING
        self._dropped: dict[int, EventId] = {}  # positions before dropped events
        self._failure: BaseException | None = None  # why a session was not delivered
        self._undelivered: dict[asyncio.Future[None], _Size] = {}
        self._undelivered_size = _NOTHING
        self._begun = _Begun()  # the last session of a page, which may continue on the next one
        self._page_bytes = 0  # of what waits of a page
        self._share = MemoryShare(account_of_process(), f"server {name}")
        self._share.close()  # it is of a connection
        self.n_received = 0
        self._refused_events = 0
        self.async_group.spawn(self._run)

    @property
    def refused_events(self) -> int:
        """``EventerClient.refused_events`` of all connections, and those that were too large."""
        current = 0 if self._client is None else self._client.refused_events
        return self._refused_events + current

    @property
    def pending_events(self) -> int:
        """Events received and not delivered yet, those that wait for delivery included."""
        return self._undelivered_size.n_events + self._backlog_size.n_events

    def last_received(self, server_id: int) -> EventId | None:
        """The last event received of a server, including those left out."""
        last = self._positions.get(server_id)
        refused = None if self._client is None else self._client.last_refused(server_id)
        return max([i for i in (last, refused) if i is not None], default=None)

    async def wait_delivered(self) -> None:
        """Wait until everything received is delivered."""
        if self._undelivered:
            await asyncio.wait(tuple(self._undelivered))

    # --- connections ----------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            # any error: a feed that ended would never connect again
            extra = {"server": self._name}
            await keep_trying(
                self._follow,
                Exception,
                mlog,
                _NOT_CONNECTED,
                extra,
                on_failure=self._on_not_connected,
            )

    def _on_not_connected(self, reason: str) -> None:
        self.interruption = f"{_NOT_CONNECTED}: {reason}"

    async def _follow(self) -> None:
        """Follow over one connection, until it is lost; raises the reason if it ended soon."""
        self._backlog, self._backlog_size, self._dropped = deque(), _NOTHING, {}
        self._begun, self._failure = _Begun(), None
        self._n_deletions = {}
        client = await self._connect(self._on_events)
        self._share = MemoryShare(account_of_process(), f"server {self._name}")
        self._share.when_lost(client.close)
        self._count()  # what came meanwhile
        connected_at = self._loop.time()
        self._client = client
        try:
            self._positions = dict(await self._known(client))
            self._on_client(client)
            self._on_state(FeedState.CONNECTED, None)
            count = await self._catch_up(client)
            if not client.is_open:  # lost just now: nothing can begin on it
                raise ClosedError(f"connection lost: {client.close_reason}")
            mlog.info("feed is live", extra={"server": self._name, "events": count})
            self._on_state(FeedState.SYNCED, count)
            await client.wait_closing()
            self._raise_failure()
            raise ClosedError(f"connection lost: {client.close_reason}")
        except EventerBridgeError as e:
            if self._loop.time() - connected_at < net_limits.STABLE_CONNECTION_S:
                raise
            self.interruption = f"{_INTERRUPTED}: {e}"
            mlog.warning(_INTERRUPTED, extra={"server": self._name, "reason": str(e)})
        finally:
            self._refused_events += client.refused_events
            self._client = None
            self._on_client(None)
            try:
                await uncancellable(client.async_close())
            finally:  # also if the feed is closed meanwhile
                self._backlog, self._backlog_size, self._begun = None, _NOTHING, _Begun()
                self._page_bytes = 0
                self._share.close()
            await self._settle()

    # --- catching up ----------------------------------------------------------------------

    async def _catch_up(self, client: EventerClient) -> int:
        count = 0
        while True:
            dropped, self._dropped = self._dropped, {}
            self._positions = {**dropped, **self._positions}
            for server_id in list(self._positions):
                count += await self._pull(client, server_id, is_first=not count)
            assert self._backlog is not None
            while self._backlog and not self._dropped:
                await slices.run(self._deliver_backlog(), self._give_way)
                await self._settle(is_all=False)
                self._raise_failure()
            if not self._dropped:
                self._backlog = None
                return count

    async def _pull(self, client: EventerClient, server_id: int, *, is_first: bool) -> int:
        """Deliver the stored events of a server behind its position."""
        count = 0
        last = self._positions[server_id]
        self._begun = _Begun()
        while True:
            params = QueryServerParams(server_id, persisted=client.persisted, last_event_id=last)
            result = await client.query(params)
            self._note_missing(server_id, result)
            if result.events and is_first and not count:
                self._on_state(FeedState.SYNCING, None)
            count += len(result.events)
            page, more_follows = deque(result.events), result.more_follows
            following = page[-1].id if page else last
            del result  # its events may be large
            self._page_bytes = _Size.of(page).n_bytes
            while page:
                await slices.run(self._deliver_page(page, server_id, last), self._give_way)
                await self._settle(is_all=False)
                self._raise_failure()
            if not more_follows:
                self._deliver_begun()
                await self._settle()
                self._raise_failure()
                return count
            if self._begun.n_events > core_limits.MAX_RECEIVED_EVENTS or following == last:
                raise RemoteProtocolError("answers without progress")
            last = following

    def _note_missing(self, server_id: int, result: QueryResult) -> None:
        known = self._n_deletions.get(server_id)
        self._n_deletions[server_id] = result.n_deletions
        if (last := result.deleted) is None or result.n_deletions == known:
            return
        if last.server != server_id:
            raise RemoteProtocolError(f"event {last} of server {server_id} is deleted")
        extra = {"server": server_id, "up_to": f"{last.session}/{last.instance}"}
        if known is None:
            mlog.warning("events were deleted before they were followed", extra=extra)
        self._on_missing(last)

    def _deliver_page(
        self, page: deque[Event], server_id: int, last: EventId | None
    ) -> Steps[None]:
        """Deliver sessions of a page, until enough are under way; other events remain in it.

        They must be of a server, and follow its ``last`` event.
        """
        while page and not self._is_full:
            event = page.popleft()
            self._page_bytes -= content_bytes(event.payload) + core_limits.EVENT_OBJECT_BYTES
            previous = self._begun.last or last
            if event.id.server != server_id or (previous is not None and event.id <= previous):
                raise RemoteProtocolError(f"answer with event {event.id} after {previous}")
            if self._begun.last and event.id.session != self._begun.last.session:
                self._deliver_begun()
                yield
            self._begun.add(event)
            if self._begun.n_events % core_limits.STEP_EVENTS == 0:
                self._count()
                yield
        self._count()

    def _deliver_begun(self) -> None:
        begun, self._begun = self._begun, _Begun()
        if begun.last is not None:
            self._deliver_session(begun)

    def _deliver_backlog(self) -> Steps[None]:
        """Deliver notifications that came while catching up, until enough is under way."""
        while self._backlog and not self._dropped and not self._is_full:
            events = self._backlog.popleft()
            self._backlog_size -= _Size.of(events)
            self._deliver_new(events)
            yield

    # --- live -----------------------------------------------------------------------------

    def _on_events(self, events: Sequence[Event]) -> asyncio.Future[None] | None:
        """Take a notification; done when it is delivered."""
        if self._backlog is None:
            return self._deliver_new(events)
        self._backlog.append(events)
        self._backlog_size += _Size.of(events)
        size = self._backlog_size
        if (
            self._dropped
            or size.n_events > core_limits.MAX_PENDING_EVENTS
            or size.n_bytes > limits.MAX_FOLLOWED_BYTES
        ):
            self._drop_backlog()
        self._count()
        return None

    def _drop_backlog(self) -> None:
        """Keep only the positions from which to query it again."""
        assert self._backlog is not None
        for event in itertools.chain.from_iterable(self._backlog):
            server_id, session_id = _session_of(event)
            if server_id not in self._dropped:
                self._check_server(server_id, self._dropped)
                self._dropped[server_id] = EventId(server_id, session_id - 1, INT64_MAX)
        self._backlog.clear()
        self._backlog_size = _NOTHING

    def _deliver_new(self, events: Sequence[Event]) -> asyncio.Future[None] | None:
        """Deliver what was not delivered yet; done when all of it is, None: there is nothing."""
        delivery = None
        for (server_id, session_id), group in groupby(events, _session_of):
            session = [*group]
            self._check_server(server_id, self._positions)
            if any(later.id <= event.id for event, later in pairwise(session)):
                raise RemoteProtocolError(f"events of session {session_id} out of order")
            last = self._positions.get(server_id)
            if last is not None and session[-1].id <= last:
                continue
            if last is not None and session[0].id.session <= last.session:
                raise RemoteProtocolError(f"more events of session {session_id} after {last}")
            begun = _Begun()
            for event in session:
                begun.add(event)
            delivery = self._deliver_session(begun)
        if delivery is None:
            return None
        done: asyncio.Future[None] = self._loop.create_future()

        def on_delivered(_: object) -> None:
            # sessions are delivered in order: earlier ones are, too
            if self._failure is None and not done.done():
                done.set_result(None)

        delivery.add_done_callback(on_delivered)
        return done

    def _check_server(self, server_id: int, known: Collection[int]) -> None:
        if self._server_id is not None and server_id != self._server_id:
            raise RemoteProtocolError(
                f"events of server {server_id}, expected those of {self._server_id}"
            )
        if server_id not in known and len(known) >= core_limits.MAX_REMOTE_SERVERS:
            raise RemoteProtocolError(
                f"events of more than {core_limits.MAX_REMOTE_SERVERS} servers"
            )

    # --- deliveries -----------------------------------------------------------------------

    def _deliver_session(self, session: "_Begun") -> asyncio.Future[None]:
        assert session.last is not None
        self._note_left_out(session)
        if self._failure is not None or self._client is None:
            return self._loop.create_future()  # nothing is delivered after a failure
        self._positions[session.last.server] = session.last
        self.n_received += session.n_events
        if not session.events:
            nothing: asyncio.Future[None] = self._loop.create_future()
            nothing.set_result(None)
            return nothing
        delivery = self._deliver(session.events)
        if delivery.done():
            self._note_failure(delivery)
            return delivery
        # sessions that are committed together share it
        if delivery not in self._undelivered:
            self._undelivered[delivery] = _NOTHING
            delivery.add_done_callback(self._on_delivered)
        self._undelivered[delivery] += session.size
        self._add_undelivered(session.size)
        return delivery

    def _note_left_out(self, session: "_Begun") -> None:
        """Note which events are not delivered, before those of this session, or later ones, are."""
        if self._failure is not None or self._client is None:
            return
        assert session.last is not None
        last = self._client.last_refused(session.last.server)
        if n_left_out := session.n_events - len(session.events):
            self._note_too_large(session, session.last, n_left_out)
            last = max(last or session.last, session.last)
        if last is not None:
            try:
                self._on_left_out(last)
            except EventerBridgeError as e:
                self._fail(e)

    def _note_too_large(self, session: "_Begun", last: EventId, n_left_out: int) -> None:
        self._refused_events += n_left_out
        most = f"{core_limits.MAX_SESSION_BYTES} bytes"
        if len(session.events) == limits.MAX_FOLLOWED_SESSION_EVENTS:
            most = f"{limits.MAX_FOLLOWED_SESSION_EVENTS} events"
        extra = {
            "server": self._name,
            "session": last.session,
            "events": n_left_out,
            "reason": f"the session has more than {most}",
        }
        mlog.error("events of a remote server are left out: too large", extra=extra)

    def _on_delivered(self, delivery: asyncio.Future[None]) -> None:
        self._add_undelivered(-self._undelivered.pop(delivery))
        self._note_failure(delivery)

    def _note_failure(self, delivery: asyncio.Future[None]) -> None:
        if (error := delivery.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = error
        if self._client is not None:
            self._client.close()  # it is fetched anew

    @property
    def _is_full(self) -> bool:
        """Whether so much waits for its delivery that nothing more is taken."""
        size = self._undelivered_size
        is_much = size.n_bytes > limits.MAX_FOLLOWED_BYTES
        return is_much or size.n_events > limits.MAX_FOLLOWED_EVENTS

    def _add_undelivered(self, size: "_Size") -> None:
        self._undelivered_size += size
        if self._client is not None:
            self._client.set_reading(not self._is_full)
        self._count()

    def _count(self) -> None:
        """Count the memory that all of it takes."""
        n_bytes = self._undelivered_size.n_bytes + self._backlog_size.n_bytes
        self._share.set(n_bytes + self._begun.size.n_bytes + self._page_bytes)

    async def _settle(self, *, is_all: bool = True) -> None:
        """Wait until nothing is under way, or there is room for more."""
        while self._undelivered if is_all else self._is_full:
            await asyncio.wait(tuple(self._undelivered), return_when=asyncio.FIRST_COMPLETED)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _session_of(event: Event) -> tuple[int, int]:
    return event.id.server, event.id.session


class _Size(NamedTuple):
    """An amount of events, and the memory that they take."""

    n_events: int
    n_bytes: int

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        payload_bytes = sum([content_bytes(event.payload) for event in events])
        return cls(len(events), payload_bytes + len(events) * core_limits.EVENT_OBJECT_BYTES)

    @override
    def __add__(self, other: object) -> "_Size":
        assert isinstance(other, _Size)
        return _Size(self.n_events + other.n_events, self.n_bytes + other.n_bytes)

    def __sub__(self, other: "_Size") -> "_Size":
        return self + -other

    def __neg__(self) -> "_Size":
        return _Size(-self.n_events, -self.n_bytes)


_NOTHING: Final = _Size(0, 0)


class _Begun:
    """Events of a session, which may have more; without those that exceed one message to clients.

    ``last`` is the id of the last one, and ``n_events`` the number, also of those left out.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.last: EventId | None = None
        self.n_events = 0
        self._n_bytes = 0

    def add(self, event: Event) -> None:
        """Add the next event."""
        self.last = event.id
        self.n_events += 1
        n_bytes = self._n_bytes + content_bytes(event.payload)
        is_small = n_bytes <= core_limits.MAX_SESSION_BYTES
        if is_small and len(self.events) < limits.MAX_FOLLOWED_SESSION_EVENTS:
            self.events.append(event)
            self._n_bytes = n_bytes

    @property
    def size(self) -> _Size:
        """Of its events."""
        n_events = len(self.events)
        return _Size(n_events, self._n_bytes + n_events * core_limits.EVENT_OBJECT_BYTES)
