"""Replication: keeps the events of a remote Event Server (000, "Server - Server communication").

Events keep their ids and timestamps, and come session by session; the stored events say where to
continue after a restart. An event that can never be stored is left out, logged and counted: it
holds up nothing else. Events that cannot be stored for now (a full disk, too many event types) hold
up the replication until they can.

The replication reports its state to the remote server by registering events
``event/<server id>/synced/<remote id>`` there, as today's Hat servers do: ``{"state":
"CONNECTED"}``, ``SYNCING`` when there is something to catch up with, ``SYNCED`` with the ``count``
of events that it caught up with, or null if it was connected all the time. It is SYNCING again when
it falls behind (:class:`Lag`). SYNCED has ``left_out``, the events left out since the start, and is
reported again when there are more.

A server whose store was restored from a backup, or made anew, has another history than the one
followed so far (:class:`Following`), and is not replicated; the log says why, and what to do.

Belongs to the event loop's thread.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hat import util

from eventer_bridge import limits as core_limits
from eventer_bridge import model
from eventer_bridge.backends import history
from eventer_bridge.backends.base import failed
from eventer_bridge.backends.history import History, is_history, type_of
from eventer_bridge.core import clock
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.paging import query_all
from eventer_bridge.core.validation import check_type
from eventer_bridge.errors import ClosedError, EventerBridgeError, InvalidEventError
from eventer_bridge.eventer.client import ConnectCb, EventerClient, EventsCb
from eventer_bridge.remote import limits
from eventer_bridge.remote.feed import Feed, FeedState
from eventer_bridge.resources import Resource

mlog = logging.getLogger(__name__)


class Following:
    """Whether a remote server continues the events of ``remote_id`` that are kept here.

    The server publishes its history (``history``), and the kept events have one as well. If they do
    not, or have the same, the events are compared as far as possible: a store can be set back by
    other means than ``mariner restore``, such as a copy of its directory.
    """

    def __init__(self, engine: Engine, remote_id: int) -> None:
        self._engine = engine
        self._remote_id = remote_id
        self._type = history.type_of(remote_id)
        self._history: History | None = None
        self._session: int | None = None  # the last one that was kept, if any was

    async def begin(
        self, client: EventerClient, session_id: int, timestamp: model.Timestamp | None
    ) -> str | None:
        """Compare at the beginning of a connection; returns why not to follow the server, or None.

        ``session_id`` and ``timestamp`` are of the last session kept here (None: there is none).
        """
        latest = (await client.query(model.QueryLatestParams([self._type]))).events
        self._history = history.read_all(latest).get(self._remote_id)
        self._session = None if timestamp is None else session_id
        if timestamp is None:
            return None
        kept = await self._engine.known_history(self._remote_id)
        followed = None if kept is None else kept.id
        if self._history is not None:
            reason = history.refusal(followed, self._history, session_id)
            if reason is not None and await self._is_rest_deleted(followed, self._history):
                reason = None
        else:
            reason = None if followed is None else f"it has no history, but {followed} was followed"
        if reason is None and not await self._has_events(client, session_id, timestamp):
            reason = f"session {session_id}, the last one here, is a different one there"
        return reason

    def goes_on(self, session: Sequence[model.Event]) -> str | None:
        """Compare a session of the server; returns why to keep nothing from it on, or None.

        A server that only passes on the events of another may switch to another history of it at
        any time.
        """
        found = history.of_session(session)
        if found is not None and (self._history is None or found.id not in self._history.ids):
            followed = None if self._history is None else self._history.id
            # of one that had registered nothing when it was connected to, none was followed
            if self._session is not None and (
                reason := history.refusal(followed, found, self._session)
            ):
                return reason
            self._history = found
        self._session = session[0].id.session
        return None

    async def _is_rest_deleted(self, followed: str | None, current: History) -> bool:
        """Whether retention has deleted here all that the server does not continue.

        Then another server that has its events could not give it back either.
        """
        spans = [span for span in current.before if span.id == followed]
        if not spans:
            return False
        last = model.EventId(self._remote_id, spans[-1].last, model.INT64_MAX)
        params = model.QueryServerParams(self._remote_id, max_results=1, last_event_id=last)
        return not (await self._engine.query(params)).events

    async def _has_events(
        self, client: EventerClient, session_id: int, timestamp: model.Timestamp
    ) -> bool:
        """Whether the server's events are consistent with the last session kept here."""
        event = await client.first_event(self._remote_id, session_id)
        if event is not None:
            if event.id.session == session_id:
                return event.timestamp == timestamp
            # that session was deleted there, or never existed
            return event.timestamp >= timestamp and await self._has_latest(client, session_id)
        # Nothing so new is there. It may have been deleted, if other servers' events of its types
        # are newer; but not the last event of this type: each start registers one.
        engine = ("event", str(self._remote_id), "engine")
        started = (await client.query(model.QueryLatestParams([engine]))).events
        return bool(started) and started[0].timestamp <= timestamp

    async def _has_latest(self, client: EventerClient, session_id: int) -> bool:
        """Whether no type has an event here that is later than all of its events there.

        The latest event of a type is never deleted. Checks the types of the last sessions.
        """
        first = max(session_id - limits.COMPARED_SESSIONS, 0)
        params = model.QueryServerParams(
            self._remote_id, last_event_id=model.EventId(self._remote_id, first, model.INT64_MAX)
        )
        kept: dict[model.EventType, model.Event] = {}
        for event in (await self._engine.query(params)).events:
            kept[event.type] = event
        types = list(kept)[-limits.COMPARED_TYPES :]
        if not types:
            return True
        found = query_all(client.query, model.QueryLatestParams(types))
        latest = {event.type: event async for event in found}
        return all(
            # servers other than ours may not keep the latest event of every type
            self._history is None if i not in latest else not _is_before(latest[i], kept[i])
            for i in types
        )


def _is_before(event: model.Event, kept: model.Event) -> bool:
    if event.id.server == kept.id.server:
        return event.id < kept.id
    return model.natural_key(event) < model.natural_key(kept)


class Lag:
    """How far a replication is behind: what *synced* means.

    Every ``limits.LAG_PERIOD_S`` it queries the remote server for durable events behind the last
    one received. If there are none, and everything received is durable here, all that the server
    had at the time of the query is kept. Two figures follow:

    - **seconds**: since the last time that was so. Events stored there longer ago are kept here, or
      were left out for good (``Replication.refused_events``).
    - **events**: those that came between the last query and its answer, and so were on their way,
      and those that are not durable here yet. There may be more while it catches up: the number of
      those that the remote server still has is unknown.

    It is synced once it has caught up, while both are within ``limits.MAX_SYNCED_LAG_S`` and
    ``MAX_SYNCED_LAG_EVENTS``; after that, it is synced again at half of them. ``on_checked`` is
    called after each query.
    """

    def __init__(self, feed: Feed, server_id: int, on_checked: Callable[[], None]) -> None:
        self._feed = feed
        self._server_id = server_id
        self._on_checked = on_checked
        self._loop = asyncio.get_running_loop()
        self._complete_at_s = self._loop.time()
        self._n_under_way = 0

    @property
    def seconds(self) -> float:
        """Seconds since nothing was missing; since its creation, if that is not known yet."""
        return self._loop.time() - self._complete_at_s

    @property
    def events(self) -> int:
        """Events that are known to be missing."""
        return self._n_under_way + self._feed.pending_events

    def is_within(self, share: float = 1) -> bool:
        """Whether both are within this share of their bounds."""
        return (
            self.seconds <= share * limits.MAX_SYNCED_LAG_S
            and self.events <= share * limits.MAX_SYNCED_LAG_EVENTS
        )

    def note_complete(self) -> None:
        """Note that all events of the server are kept."""
        self._complete_at_s = self._loop.time()
        self._n_under_way = 0

    async def watch(self, client: EventerClient) -> None:
        """Query the server again and again, until that raises ``EventerBridgeError``."""
        while True:
            requested_at_s = self._loop.time()
            n_received = self._feed.n_received
            last = self._feed.last_received(self._server_id)
            params = model.QueryServerParams(
                self._server_id, persisted=True, max_results=1, last_event_id=last
            )
            found = (await client.query(params)).events
            last = self._feed.last_received(self._server_id)
            self._n_under_way = self._feed.n_received - n_received
            await self._feed.wait_delivered()
            if not found or (last is not None and found[0].id <= last):
                self._complete_at_s = requested_at_s
            self._on_checked()
            await asyncio.sleep(limits.LAG_PERIOD_S)


_REFUSED: Final = (
    "server is not replicated: its store is not the one whose events are kept here. Start it with"
    " that one; or, to lose nothing, give it another server_id, list that here, and have it"
    " replicate its old id from here; or begin here with an older store, or an empty one"
)
"""What to do; the reason is logged beside it."""

_REFUSED_FOR_NOW: Final = "server is not replicated for now: its events are not those kept here"
"""Of one that is not active."""


class Replication(Resource):
    """See the module. It keeps the events of a server in an engine, and runs until it is closed.

    ``state`` is how far it is; None while there is no connection, or none to the same store.
    ``remote_status_cbs`` are called whenever :attr:`remote_status` or :attr:`is_caught_up` may have
    changed.
    """

    def __init__(self, engine: Engine, remote_id: int, connect: ConnectCb) -> None:
        self.remote_id = remote_id
        self.state: FeedState | None = None
        self.connect = connect
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._client: EventerClient | None = None
        self.remote_status_cbs = util.CallbackRegistry()
        self._timestamp: model.Timestamp | None = None  # of the last session
        self._is_ahead_logged = False
        self._is_refused = False
        self._refused_events = 0
        self._following = Following(engine, remote_id)
        self._feed = Feed(
            self.name,
            self._connect_feed,
            self._known,
            self._deliver,
            server_id=remote_id,
            on_client=self._on_client,
            on_state=self._on_state,
            on_missing=engine.note_missing,
            on_left_out=engine.note_missing,
            give_way=engine.give_way,
        )
        self.async_group = self._feed.async_group
        self._lag = Lag(self._feed, remote_id, self._on_checked)
        self._reported_left_out = 0
        self._report_left_out_at_s = 0.0

    @property
    def remote_status(self) -> model.Status | None:
        """The remote server's status; None while there is no connection."""
        return None if self._client is None else self._client.status

    @property
    def name(self) -> str:
        """What the remote server is called in the log."""
        return f"server {self.remote_id}"

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the remote server."""
        return self._client is not None

    @property
    def is_synced(self) -> bool:
        """Whether it has caught up, and is close behind new events."""
        return self.state is FeedState.SYNCED and self._lag.is_within()

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing is missing that was stored before it connected; or nothing can be had."""
        return self.state is FeedState.SYNCED or self._is_refused

    async def wait_delivered(self) -> None:
        """Wait until everything received is kept."""
        await self._feed.wait_delivered()

    async def check_answers(self, timeout_s: float) -> None:
        """Give the connection up if the remote server answers nothing on it for so long."""
        client = self._client
        if client is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await client.ping()
        except (TimeoutError, EventerBridgeError):
            extra = {"server": self.remote_id, "timeout_s": timeout_s}
            mlog.warning("server does not answer: it counts as gone", extra=extra)
            client.close()

    @property
    def lag_s(self) -> float:
        """Seconds for which events may have been missing (:class:`Lag`)."""
        return self._lag.seconds

    @property
    def lag_events(self) -> int:
        """Events known to be missing at the moment (:class:`Lag`)."""
        return self._lag.events

    @property
    def refused_events(self) -> int:
        """Events that the remote server sent and that cannot be kept, counted each time."""
        return self._refused_events + self._feed.refused_events

    @property
    def ahead_s(self) -> float:
        """Seconds by which its newest event kept here is ahead of the clock of this machine."""
        return 0.0 if self._timestamp is None else clock.ahead_s(self._timestamp)

    async def _connect_feed(self, on_events: EventsCb) -> EventerClient:
        return await self.connect(
            subscriptions=[("*",)],
            server_id=self.remote_id,
            persisted=True,
            on_events=on_events,
            on_status=self._on_status,
        )

    async def _known(self, client: EventerClient) -> Mapping[int, model.EventId | None]:
        session_id, self._timestamp = self._engine.replicated(self.remote_id)
        logged = None
        while reason := await self._following.begin(client, session_id, self._timestamp):
            self._is_refused = True
            self._on_client(client)  # its status counts all the same
            # one that is not active may be about to get its events back (``group``)
            log = mlog.error, _REFUSED
            if client.status is not model.Status.OPERATIONAL:
                log = mlog.warning, _REFUSED_FOR_NOW
            if log != logged:
                extra = {
                    "server": self.remote_id,
                    "peer": client.peer,
                    "last_session": session_id,
                    "reason": reason,
                }
                log[0](log[1], extra=extra)
                logged = log
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.REFUSED_PERIOD_S):
                    await client.wait_closing()
                    raise ClosedError(f"connection lost: {client.close_reason}")
        self._is_refused = False
        if self._timestamp is None:
            await self._warn_if_unknown(client)
            return {self.remote_id: None}
        return {self.remote_id: model.EventId(self.remote_id, session_id, model.INT64_MAX)}

    async def _warn_if_unknown(self, client: EventerClient) -> None:
        """Warn of a wrong identifier, for which the replication would wait silently."""
        if client.status is not model.Status.OPERATIONAL:
            return  # perhaps nothing is registered there yet
        started = (await client.query(model.QueryLatestParams([("event", "?", "engine")]))).events
        known = sorted({event.id.server for event in started})
        if known and self.remote_id not in known:
            extra = {"server": self.remote_id, "known": known[: limits.MAX_GROUP_SERVERS]}
            mlog.warning(f"server {self.remote_id} is unknown at {client.peer}", extra=extra)

    def _deliver(self, session: Sequence[model.Event]) -> asyncio.Future[None]:
        """Keep the events of a session that can be kept."""
        if reason := self._following.goes_on(session):
            error = ClosedError(f"server {self.remote_id} continues with another history: {reason}")
            return failed(asyncio.get_running_loop().create_future(), error)
        checked: dict[model.EventType, str | None] = {}
        refusals = {
            event.id: reason
            for event in session
            if (reason := self._refusal(event, session[0], checked)) is not None
        }
        events = [event for event in session if event.id not in refusals]
        if refusals:
            self._refused_events += len(refusals)
            extra = {
                "server": self.remote_id,
                "session": session[0].id.session,
                "events": len(refusals),
                "reason": next(iter(refusals.values()))[: core_limits.MAX_LOG_CHARACTERS],
            }
            mlog.error("events of a remote server are left out: they cannot be kept", extra=extra)
            try:
                self._engine.note_missing(max(refusals))
            except EventerBridgeError as e:
                return failed(asyncio.get_running_loop().create_future(), e)
        if not events:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        self._timestamp = session[0].timestamp
        self._log_if_ahead()
        return self._engine.replicate(events)

    def _log_if_ahead(self) -> None:
        """Warn once per connection that one of the clocks is wrong; the events are kept."""
        if not self._is_ahead_logged and self.ahead_s > core_limits.CLOCK_TOLERANCE_S:
            self._is_ahead_logged = True
            extra = {"server": self.remote_id, "ahead_s": round(self.ahead_s, 3)}
            mlog.warning("replicated events are ahead of the clock of this machine", extra=extra)

    def _refusal(
        self, event: model.Event, first: model.Event, checked: dict[model.EventType, str | None]
    ) -> str | None:
        """The reason why an event can never be stored, or None. Remembers the results of types.

        A server's timestamps rise with its ids: the natural order builds on that. hat-event sends
        events for which they do not, but does not store them either.
        """
        if event.timestamp != first.timestamp:
            return "its timestamp is not that of its session"
        if self._timestamp is not None and event.timestamp < self._timestamp:
            return "its timestamp is before that of an earlier session"
        if event.type not in checked:
            checked[event.type] = self._type_refusal(event.type)
        return checked[event.type]

    def _type_refusal(self, event_type: model.EventType) -> str | None:
        if is_history(event_type) and event_type != type_of(self.remote_id):
            return "it is the history of another server"
        try:
            check_type(event_type)
        except InvalidEventError as e:
            return str(e)
        return None

    def _on_client(self, client: EventerClient | None) -> None:
        self._client = client
        if client is None:
            self.state = None
            self._is_ahead_logged = False
        self.remote_status_cbs.notify()

    def _on_state(self, state: FeedState, count: int | None) -> None:
        if state is FeedState.SYNCED:
            self._lag.note_complete()
            if self._client is not None:
                self._client.async_group.spawn(self._watch, self._client)
        self._set_state(state, count)

    async def _watch(self, client: EventerClient) -> None:
        try:
            with contextlib.suppress(EventerBridgeError):
                await self._lag.watch(client)
        finally:
            client.close()  # a server that does not answer is asked over another connection

    def _on_checked(self) -> None:
        if self.state is FeedState.SYNCED and not self._lag.is_within():
            self._set_state(FeedState.SYNCING, None)
        elif self.state is FeedState.SYNCING and self._lag.is_within(0.5):
            self._set_state(FeedState.SYNCED, None)
        elif (
            self.state is FeedState.SYNCED
            and self.refused_events != self._reported_left_out
            and self._loop.time() >= self._report_left_out_at_s
        ):
            self._report(None)

    def _set_state(self, state: FeedState, count: int | None) -> None:
        self.state = state
        self.remote_status_cbs.notify()
        extra = {
            "server": self.remote_id,
            "state": state.value,
            "events": count,
            "lag_s": round(self.lag_s, 3),
            "lag_events": self.lag_events,
            "left_out": self.refused_events,
        }
        mlog.info("replication", extra=extra)
        self._report(count)

    def _on_status(self, status: model.Status) -> None:
        # nothing could be reported while it was not OPERATIONAL
        if status is model.Status.OPERATIONAL and self.state is not None:
            self._report(None)
        self.remote_status_cbs.notify()

    def _report(self, count: int | None) -> None:
        if self._client is None or self.state is None:
            return
        data: dict[str, Any] = {"state": self.state.value}
        if self.state is FeedState.SYNCED:
            data["count"] = count
            if left_out := self.refused_events:
                data["left_out"] = left_out
            self._reported_left_out = left_out
            self._report_left_out_at_s = self._loop.time() + limits.LEFT_OUT_REPORT_S
        event_type = ("event", str(self._engine.server_id), "synced", str(self.remote_id))
        try:
            self._client.register_only(
                [model.RegisterEvent(event_type, None, model.JsonPayload.of(data))]
            )
        except EventerBridgeError as e:
            extra = {"server": self.remote_id, "reason": str(e)}
            mlog.debug(
                "state of the replication cannot be reported to the remote server", extra=extra
            )
