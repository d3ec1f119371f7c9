"""A core that is elsewhere: registrations, queries and notifications of a remote Event Server.

Clients are served as by the embedded engine; the relay acknowledges only what the remote server
acknowledged. While there is no connection, the status is STANDBY and registrations are refused;
the outcome of those without an answer when the connection was lost is unknown. Missed
notifications are caught up with (see ``feed``). If the remote server comes back with another
history of a server (``history``), clients are disconnected: none sees both.

The gateway is one client of the remote server, with three connections. Two are feeds: clients that
subscribe to persisted events are notified at other times than the rest. The third is for queries: a
server may process the messages of a connection one after the other (hat-event does), so that
registrations would wait for slow queries. The gateway decides what clients may see and register.

Belongs to the event loop's thread. What asks the server raises ``EventerBridgeError``: the
connection was lost, or an answer breaks the protocol.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import msgspec
from typing_extensions import override

from eventer_bridge import errors, model
from eventer_bridge import limits as core_limits
from eventer_bridge.backends import history
from eventer_bridge.backends.base import NO_WAY_ON, failed, result_limit
from eventer_bridge.backends.history import History
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.base import EventCore, Work
from eventer_bridge.core.paging import QueryCb, query_all
from eventer_bridge.core.session import REMOTE_SOURCE, is_large, resolve
from eventer_bridge.core.validation import check_type, too_many
from eventer_bridge.eventer.client import ConnectCb, EventerClient, EventsCb
from eventer_bridge.packed import Batch, stored_batch
from eventer_bridge.payloads import same_as
from eventer_bridge.remote import limits
from eventer_bridge.remote.feed import Feed
from eventer_bridge.resources import call_on_cancel, uncancellable
from eventer_bridge.slices import FairGate
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)


_ENGINES: Final = ("event", "?", "engine")


class RelayPosition(NamedTuple):
    """The last event of a server that clients were notified of, or the last of the baseline."""

    id: model.EventId
    timestamp: model.Timestamp

    @classmethod
    def of(cls, event: model.Event) -> "RelayPosition":
        """The position of that event."""
        return cls(event.id, event.timestamp)


async def baseline(client: EventerClient) -> dict[int, RelayPosition]:
    """The last event of each server at this moment.

    A relay notifies its clients of events registered after it. The protocol has no query for it,
    but every server registers ``event/<server id>/engine`` when it starts; the events after that
    one are found by bisecting the range of session ids.
    """
    positions = {}
    newest = model.QueryTimeseriesParams(order=model.Order.DESCENDING, max_results=1)
    for event in (await client.query(newest)).events:
        positions[event.id.server] = RelayPosition.of(event)
    for event in await _latest(client, _ENGINES):
        if event.id.server not in positions:
            positions[event.id.server] = await _last_of_server(client, event)
    return positions


async def histories(client: EventerClient) -> dict[int, History]:
    """The histories of the servers whose events are there, by server."""
    return history.read_all(await _latest(client, history.ANY_TYPE))


def refusal(
    positions: Mapping[int, RelayPosition],
    followed: Mapping[int, History],
    current: Mapping[int, History],
) -> str | None:
    """Why ``current`` histories do not continue events that clients know; None: they do.

    ``positions`` are the last of these events, ``followed`` their histories, as far as known.
    """
    for server_id in positions.keys() & current.keys():
        followed_id = followed[server_id].id if server_id in followed else None
        session = positions[server_id].id.session
        if reason := history.refusal(followed_id, current[server_id], session):
            return f"server {server_id}: {reason}"
    return None


async def resume(
    client: EventerClient, positions: Mapping[int, RelayPosition]
) -> dict[int, model.EventId | None]:
    """Where to continue: after the last event of each server that clients were notified of.

    A server that was killed may have lost its last events, even some it has sent, and reuses their
    ids (hat-event does). A server whose store is in memory, or was deleted, begins with its ids
    anew. If the event of a position is gone, this returns the last one before it, or None: the
    server was unknown, or has none of its earlier events any more, and all of its events are new.
    """
    found: dict[int, model.EventId | None] = {}
    for event in await _latest(client, _ENGINES):
        found[event.id.server] = None
    for server_id, position in positions.items():
        found[server_id] = await _still_there(client, position)
    return found


async def _latest(client: EventerClient, query_type: model.EventType) -> list[model.Event]:
    pages = query_all(
        client.query, model.QueryLatestParams([query_type]), core_limits.MAX_REMOTE_SERVERS + 1
    )
    events = [event async for event in pages]
    if len(events) > core_limits.MAX_REMOTE_SERVERS:
        raise errors.RemoteProtocolError(
            f"events of more than {core_limits.MAX_REMOTE_SERVERS} servers"
        )
    return events


async def _last_of_server(client: EventerClient, known: model.Event) -> RelayPosition:
    """The last event of a server, starting from a known one."""
    server_id = known.id.server
    low, high = known, model.INT64_MAX  # sessions between are unknown
    step = 1
    while low.id.session + 1 < high:
        middle = min(low.id.session + step, (low.id.session + high) // 2)
        event = await client.first_event(server_id, middle)
        if event is None:
            high = middle
            step = max(1, step // 2)
        else:
            low = event
            step *= 2
    # all events of that session: it has ended
    return RelayPosition(model.EventId(server_id, low.id.session, model.INT64_MAX), low.timestamp)


async def _still_there(client: EventerClient, position: RelayPosition) -> model.EventId | None:
    """The position; if the server lost that event, the last one before it; or None."""
    server_id, session_id = position.id.server, position.id.session
    found = await client.first_event(server_id, session_id)
    if found is not None and (found.id.session, found.timestamp) == (
        session_id,
        position.timestamp,
    ):
        return position.id
    older = await _last_before(client, position)
    extra = {"server": server_id, "session": session_id, "continues_after": older}
    mlog.warning("event server no longer has the last events it sent", extra=extra)
    return None if older is None else model.EventId(server_id, older, model.INT64_MAX)


async def _last_before(client: EventerClient, position: RelayPosition) -> int | None:
    """The last session of a server that is older than the position, by id and by time.

    The timestamps of a server's events rise with their ids, so bisecting finds it.
    """
    server_id, high = position.id.server, position.id.session  # which is not there
    low: int | None = None
    step = 1
    while (low or 0) + 1 < high:
        # first further and further back; in between, once there is one
        middle = max(1, high - step) if low is None else (low + high) // 2
        event = await client.first_event(server_id, middle)
        if event is None or event.id.session >= high or event.timestamp > position.timestamp:
            high = middle
            step *= 2
        else:
            low = event.id.session
    return low


async def answer(request: QueryCb, query: VisibleQuery) -> model.QueryResult:
    """Answer a query from the remote server's answers to ``request``, as far as they may be seen.

    The Eventer protocol cannot express all conditions of a timeseries (000, 001), nor types of a
    server's events: these conditions are applied to the answers of a wider query, page by page,
    which costs as much. Hidden events count neither for ``max_results`` nor for ``more_follows``:
    else a client could count what it may not see. Answers with events that were not requested, or
    the same ones again, raise ``RemoteProtocolError``.
    """
    params, visible = query.params, query.types
    if visible.is_empty:
        is_behind = isinstance(params, model.QueryLatestParams) and params.last_event_id is not None
        return NO_WAY_ON if is_behind else model.QueryResult([], False)
    if isinstance(params, model.QueryServerParams):
        return await _answer_server(request, params, visible)
    types = None if visible.is_everything else visible.query_types
    params = msgspec.structs.replace(params, event_types=types)

    async def request_visible(page: model.QueryParams) -> model.QueryResult:
        result = await request(page)
        if not visible.is_everything:  # the gateway enforces the rights, whatever the server sends
            for event in result.events:
                if not visible.matches(event.type):
                    text = f"answer with an event of type {model.quoted_type(event.type)}"
                    raise errors.RemoteProtocolError(f"{text}, which was not asked for")
        return result

    if isinstance(params, model.QueryTimeseriesParams) and is_conditional(params):
        return await _take(matching(request_visible, params), params.max_results)
    return await request_visible(params)


async def _answer_server(
    request: QueryCb, params: model.QueryServerParams, visible: Subscription
) -> model.QueryResult:
    if visible.is_everything:
        return await request(params)
    # what is requested, and one that says that more follow; then pages as large as there
    sizes = iter((result_limit(params.max_results) + 1, limits.SECOND_PAGE_EVENTS))

    async def request_sized(page: model.QueryParams) -> model.QueryResult:
        return await request(msgspec.structs.replace(page, max_results=next(sizes, None)))

    async def of_client() -> AsyncGenerator[model.Event, None]:
        async with contextlib.aclosing(query_all(request_sized, params)) as events:
            async for event in events:
                if visible.matches(event.type):
                    yield event

    return await _take(of_client(), params.max_results)


def is_conditional(params: model.QueryTimeseriesParams) -> bool:
    """Whether a query has a condition that the Eventer protocol cannot express."""
    return params.ids is not None or params.payload is not None or params.unique_type


async def _take(
    found: AsyncGenerator[model.Event, None], max_results: int | None
) -> model.QueryResult:
    """An answer of the first events, cut as ``common.take`` does."""
    limit = result_limit(max_results)
    taken: list[model.Event] = []
    n_bytes = 0
    async with contextlib.aclosing(found) as events:
        async for event in events:
            if event.payload is not None:
                n_bytes += len(event.payload.data)
            if len(taken) >= limit or (taken and n_bytes > core_limits.MAX_RESULT_BYTES):
                return model.QueryResult(taken, True)
            taken.append(event)
    return model.QueryResult(taken, False)


async def matching(
    request: QueryCb, params: model.QueryTimeseriesParams
) -> AsyncGenerator[model.Event, None]:
    """All events that satisfy a query with such a condition, after its ``last_event_id``.

    Ignores ``max_results``. Fetches each page of the wider query when it is needed; raises as
    ``EventerClient.query``.
    """
    ids = None if params.ids is None else frozenset(params.ids)
    is_same = None if params.payload is None else same_as(params.payload)
    last_id = params.last_event_id
    seen_types: set[model.EventType] = set()
    wider = msgspec.structs.replace(
        params, ids=None, payload=None, unique_type=False, max_results=None, last_event_id=None
    )
    async with contextlib.aclosing(query_all(request, wider)) as events:
        async for event in events:
            if ids is not None and event.id not in ids:
                continue
            if is_same is not None and not is_same(event.payload):
                continue
            if params.unique_type:
                if event.type in seen_types:
                    continue
                seen_types.add(event.type)
            if last_id is None:
                yield event
            elif event.id == last_id:
                last_id = None


class RelayCore(EventCore):
    """See the module. It connects, by ``connect``, and reconnects, in the background.

    ``name`` is what the remote server is called in errors and in the log.
    """

    def __init__(self, name: str, connect: ConnectCb) -> None:
        super().__init__(limits.MAX_RELAYED_BYTES)
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._client: EventerClient | None = None
        self._query_client: EventerClient | None = None
        self._connecting_query_client = asyncio.Lock()
        self._n_requested = self._n_answered = 0
        self._query_gate = FairGate(limits.MAX_RELAYED_QUERIES)
        self._baseline: Mapping[int, RelayPosition] | None = None
        self._finding_baseline = asyncio.Lock()
        self._positions: list[dict[int, RelayPosition]] = []  # of each feed
        self._feeds = [self._create_feed(persisted) for persisted in (False, True)]
        self.async_group.spawn(call_on_cancel, self._stop)

    @property
    @override
    def status(self) -> model.Status:
        return model.Status.STANDBY if self._client is None else self._client.status

    @property
    @override
    def hindrance(self) -> str | None:
        if self._client is None:
            return self._feeds[0].interruption or f"event server {self.name} is not connected yet"
        if self._client.status is not model.Status.OPERATIONAL:
            return f"event server {self.name} is {self._client.status.name}"
        return None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the remote server."""
        return self._client is not None

    @property
    def refused_events(self) -> int:
        """Events that the remote server sent and that cannot be kept, counted each time."""
        return sum(feed.refused_events for feed in self._feeds)

    @override
    def announce(self, source: model.Source, client_name: str, *, is_connected: bool) -> None:
        """Nothing: the remote server announces its own clients."""

    @override
    def _work(self) -> Iterable[Work]:
        yield Work(f"events wait for {self.name}", self.pending_events, self.n_ended)
        n_requested = self._n_requested - self._n_answered
        yield Work(f"queries wait for {self.name}", n_requested, self._n_answered)

    @override
    def submit(self, batches: list[Batch]) -> None:
        """Send registrations. The remote server counts event types.

        A batch fails with ``NotOperationalError`` if nothing was sent, ``OutcomeUnknownError`` if
        the connection was lost before the answer, ``InvalidEventError``, ``LimitError`` (more than
        can be sent) or ``RequestKeyError`` (it has a key).
        """
        for batch in batches:
            batch.committed = self._loop.create_future()
            try:
                self._register(batch)
            except errors.EventerBridgeError as e:
                failed(batch.committed, e)

    def _register(self, batch: Batch) -> None:
        if batch.key is not None:
            raise errors.RequestKeyError("this server does not keep a request_key")
        client = self._client
        if client is None:
            raise errors.NotOperationalError(f"event server {self.name} is not connected")
        if client.status is not model.Status.OPERATIONAL:
            raise errors.NotOperationalError(f"server is {client.status.name}, not OPERATIONAL")
        if len(batch) > core_limits.MAX_SESSION_EVENTS:
            raise too_many(len(batch))
        for event_type in batch.types:
            check_type(event_type)
        if not len(batch):
            batch.committed.set_result(None)
            return
        n_bytes = batch.payload_bytes
        if self._pending_bytes and self._pending_bytes + n_bytes > 2 * limits.MAX_RELAYED_BYTES:
            raise errors.LimitError(f"event server {self.name} is too slow for that many bytes")
        batch.is_large = is_large(len(batch), n_bytes)
        try:
            response = client.register(batch[:])
        except errors.ClosedError as e:
            raise errors.NotOperationalError(
                f"connection to event server {self.name} is lost: {e}"
            ) from e
        self._add_pending(len(batch), n_bytes)
        response.add_done_callback(functools.partial(self._on_response, batch))

    @override
    async def answer(
        self,
        query: VisibleQuery,
        client: str = "",
        after: Collection[asyncio.Future[None]] = (),
        holding: ExitStack | None = None,
    ) -> model.QueryResult:
        """Have the remote server answer a query, or a wider one (:func:`answer`), in time."""
        timeout = asyncio.timeout(limits.RELAYED_QUERY_TIMEOUT_S)
        try:
            async with timeout:
                connected = await self._connect_for_queries()

                async def request(page: model.QueryParams) -> model.QueryResult:
                    self._n_requested += 1
                    try:
                        return await self._query_gate.run(client, lambda: connected.query(page))
                    finally:
                        self._n_answered += 1

                return await answer(request, query)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise errors.LimitError(
                f"the query took more than {limits.RELAYED_QUERY_TIMEOUT_S:g} s"
            ) from None

    async def _connect_for_queries(self) -> EventerClient:
        """The connection for queries: created by the first query, and again if it was lost."""
        async with self._connecting_query_client:
            client = self._client
            if client is None:
                raise errors.ClosedError(f"event server {self.name} is not connected")
            if self._query_client is None or not self._query_client.is_open:
                # one query that is too slow must not end those of others
                connected = await self._connect(
                    response_timeout_s=limits.RELAYED_RESPONSE_TIMEOUT_S
                )
                if self._client is not client:
                    await uncancellable(connected.async_close())
                    raise errors.ClosedError(
                        f"connection to event server {self.name} was lost meanwhile"
                    )
                self._query_client = connected
            return self._query_client

    def _create_feed(self, persisted: bool) -> Feed:
        """A feed of the remote events; the one that is not persisted is the main one."""

        def connect_feed(on_events: EventsCb) -> Awaitable[EventerClient]:
            return self._connect(
                subscriptions=[("*",)],
                persisted=persisted,
                on_events=on_events,
                on_status=lambda _: None if persisted else self._notify_status(),
            )

        async def known(client: EventerClient) -> Mapping[int, model.EventId | None]:
            current = await histories(client)
            if reason := refusal(positions, self.histories, current):
                self._begin_anew(reason)
            self.histories = {**self.histories, **current}
            for server_id, position in (await self._find_baseline(client)).items():
                positions.setdefault(server_id, position)
            return await resume(client, positions)

        def deliver(events: Sequence[model.Event]) -> asyncio.Future[None]:
            delivered: asyncio.Future[None] = self._loop.create_future()
            if reason := self._other_history(events, positions):
                return failed(delivered, errors.ClosedError(f"another history: {reason}"))
            batch = stored_batch(events, self.types)
            batch.source, batch.committed = REMOTE_SOURCE, delivered
            if any(event.timestamp != events[0].timestamp for event in events):
                batch.answer_with(events)  # which only a batch of one timestamp can make
            delivered.set_result(None)
            positions[events[-1].id.server] = RelayPosition.of(events[-1])
            self._notify_session(batch, persisted=persisted)
            return delivered

        def on_missing(last: model.EventId) -> None:
            text = f"events of server {last.server} were deleted before they were relayed"
            self._on_unnotified(errors.ClosedError(text), persisted=persisted)

        positions: dict[int, RelayPosition] = {}
        self._positions.append(positions)
        return Feed(
            f"{self.name} (persisted)" if persisted else self.name,
            connect_feed,
            known,
            deliver,
            on_missing=on_missing,
            on_client=(lambda client: None) if persisted else self._set_client,
        )

    def _other_history(
        self, session: Sequence[model.Event], positions: Mapping[int, RelayPosition]
    ) -> str | None:
        """Why a session does not continue the history that clients were notified of; None: it does.

        A server that only passes on the events of another may switch to another history of it at
        any time.
        """
        current = history.of_session(session)
        if current is None:
            return None
        server_id = session[0].id.server
        followed = self.histories.get(server_id)
        if followed is not None and current.id in followed.ids:
            return None
        reason = refusal(positions, self.histories, {server_id: current})
        if reason is None:
            self.histories = {**self.histories, server_id: current}
        return reason

    def _begin_anew(self, reason: str) -> None:
        """Disconnect the clients that know the earlier history."""
        mlog.error(
            "event server does not continue its history: clients are disconnected, and get its"
            " events from now on when they reconnect",
            extra={"server": self.name, "reason": reason},
        )
        self._baseline = None
        self.histories = {}
        for positions in self._positions:
            positions.clear()
        self._notify_other_history()

    async def _find_baseline(self, client: EventerClient) -> Mapping[int, RelayPosition]:
        """The events that are too old to be new: the same for both feeds."""
        async with self._finding_baseline:
            if self._baseline is None:
                self._baseline = await baseline(client)
        return self._baseline

    def _set_client(self, client: EventerClient | None) -> None:
        self._client = client
        if client is None and self._query_client is not None:
            self._query_client.close()
        self._notify_status()

    def _on_response(self, batch: Batch, response: asyncio.Future[Sequence[model.Event]]) -> None:
        self._end_pending(1, len(batch), batch.payload_bytes)
        error = response.exception()
        if error is None:
            batch.answer_with(response.result())
        resolve(batch.committed, error)
        self._notify_drained()

    async def _stop(self) -> None:
        for feed in self._feeds:
            await feed.async_close()
        if self._query_client is not None:
            await self._query_client.async_close()
