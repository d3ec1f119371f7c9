"""Queries of a client: answered one after the other, each when the answer before it has left.

Cheap queries are answered at once, if the core can (``EventCore.answer_at_once``).

Queries wait while the client's quota of reading is used up. The client is not read while too many
of them wait or they take too much memory. They end when it disconnects.

Runs on the event loop's thread.
"""

import asyncio
import logging
import time
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from eventer_bridge import limits, slices
from eventer_bridge.backends.readers import Reading
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.client_registrations import ClientRegistrations
from eventer_bridge.core.client_service import ClientService, ClientWire
from eventer_bridge.core.quotas import ROWS, Account, first_rows, has_ended_early, limit_rows
from eventer_bridge.core.rights import Rights
from eventer_bridge.errors import ClosedError, EventerBridgeError
from eventer_bridge.memory import query_bytes
from eventer_bridge.model import QueryParams
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.net.throttle import QUERIES

RequestT = TypeVar("RequestT")


class _Waiting(msgspec.Struct, Generic[RequestT]):
    """A query that waits for its answer, and the memory that it takes."""

    request: RequestT
    params: QueryParams
    held_bytes: int


class ClientQueries(Generic[RequestT]):
    """The queries of a client, which find its ``registrations``."""

    __slots__ = (
        "_account",
        "_answering",
        "_heard",
        "_registrations",
        "_rights",
        "_service",
        "_stream",
        "_waiting",
        "_waiting_bytes",
        "_wire",
    )

    def __init__(
        self,
        service: ClientService,
        stream: Stream[Any],
        wire: ClientWire[RequestT],
        registrations: ClientRegistrations,
    ) -> None:
        self._service = service
        self._stream = stream
        self._wire = wire
        self._registrations = registrations
        self._rights: Rights  # from when the client is accepted
        self._account: Account
        # with the one that is being answered; an empty deque takes 0.7 kB
        self._waiting: list[_Waiting[RequestT]] = []
        self._waiting_bytes = 0
        self._answering: asyncio.Task[None] | None = None
        self._heard: list[asyncio.Future[None]] = []  # commits of large sessions

    @property
    def is_answering(self) -> bool:
        """Whether the client waits for an answer."""
        return bool(self._waiting or self._answering)

    def use(self, rights: Rights, account: Account) -> None:
        """What the client may see from now on, and where it is counted."""
        self._rights, self._account = rights, account

    def find(self, commit: asyncio.Future[None]) -> None:
        """Wait for a commit that the client has heard of already."""
        self._heard = [i for i in self._heard if not i.done()] + [commit]

    def end(self) -> None:
        """The client is gone."""
        self._waiting.clear()
        self._count(-self._waiting_bytes)
        if self._answering is not None:
            self._answering.cancel()

    def add(self, request: RequestT, params: QueryParams) -> None:
        """Answer a query, after those that came before it."""
        self._registrations.hand_over_gathered()
        is_first = not self._waiting and self._answering is None
        if is_first and self._answer_at_once(request, params):
            return
        n_bytes = query_bytes(params, self._stream.take_bytes())
        self._waiting.append(_Waiting(request, params, n_bytes))
        self._count(n_bytes)
        if (
            len(self._waiting) >= limits.MAX_QUERIES_WAITING
            or self._waiting_bytes >= limits.MAX_QUERIES_WAITING_BYTES
        ):
            self._stream.pause_reading(Pause.QUERIES_FULL)
        if self._answering is None:
            self._answering = self._service.spawn(self._answer_queries())

    def _count(self, n_bytes: int) -> None:
        """What waits takes so much more memory, or less."""
        self._waiting_bytes += n_bytes
        self._stream.hold(n_bytes)

    def _answer_at_once(self, request: RequestT, params: QueryParams) -> bool:
        """Answer a query that takes little and waits for nothing; False: nothing was done."""
        account, stream = self._account, self._stream
        if account.throttle is not None or account.max_query_rows is not None:
            return False
        stream.flush()
        if stream.is_write_blocked or stream.close_reason is not None:
            return False
        started_s = time.perf_counter()
        query = VisibleQuery(params, self._rights.subscription)
        try:
            result = self._service.core.answer_at_once(query, self._commits_to_find())
            if result is None:
                return False
            encoded = slices.at_once(self._wire.encode_result(request, result))
            stream.send_at_once(partial(self._wire.send_result, request, encoded))
            self._service.observe_query(params, time.perf_counter() - started_s)
        except Exception as e:
            stream.on_failed(e)
        return True

    async def _answer_queries(self) -> None:
        # one after the other, and the next only when the answer before it has left
        stream = self._stream
        try:
            while self._waiting:
                await stream.drain()
                if (throttle := self._account.throttle) is not None:
                    await throttle.until_paid()
                first = self._waiting[0]
                started_s = time.perf_counter()
                with Reading() as reading:
                    await self._answer_query(first.request, first.params, reading)
                if throttle is not None:
                    throttle.spend(QUERIES, reading.seconds * 1_000)
                if not self._waiting:  # the connection was closed meanwhile
                    break
                self._service.observe_query(first.params, time.perf_counter() - started_s)
                del self._waiting[0]
                self._count(-first.held_bytes)
                stream.resume_reading(Pause.QUERIES_FULL)
        except ClosedError:
            stream.close(CloseReason.QUERY_FAILED, detail="closed")
        except EventerBridgeError as e:
            stream.close(CloseReason.QUERY_FAILED, detail=str(e), level=logging.WARNING)
        except Exception as e:
            stream.on_failed(e)
        finally:
            self._answering = None
        stream.close_if_answered()

    async def _answer_query(self, request: RequestT, params: QueryParams, holding: Reading) -> None:
        subscription = None
        requested = params
        if (most := self._account.max_query_rows) is not None:
            params = limit_rows(requested, most)
        while subscription is not self._rights.subscription:  # they may change meanwhile
            subscription = self._rights.subscription
            query = VisibleQuery(params, subscription)
            result = await self._service.core.answer(
                query, self._stream.owner, self._commits_to_find(), holding
            )
            if most is not None:
                result = first_rows(result, most)
                if has_ended_early(requested, result, most):
                    self._account.hit(ROWS)
            steps = self._wire.encode_result(request, result)
            del result  # it may be large
            encoded = await slices.run(steps)
        self._stream.send_at_once(partial(self._wire.send_result, request, encoded))

    def _commits_to_find(self) -> list[asyncio.Future[None]]:
        """Of what it registered last, or heard of before it was committed."""
        if not self._registrations.unanswered:
            return self._heard
        commit = self._registrations.last_commit()
        return self._heard if commit is None else [commit, *self._heard]
