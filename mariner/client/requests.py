"""Requests and their answers: each waits as a future, by its identifier, in the order of sending.

A request waits to be sent while the transport's write buffer is above its high-water mark.

Runs on the event loop's thread.
"""

import asyncio
import itertools
from typing import Any, TypeVar

from hat import aio

from mariner.client import reasons
from mariner.client.connection import ServerConnection
from mariner.errors import ConnectionLostError, RemoteProtocolError
from mariner.wire.messages import Message, PingRes, QueryRes, RegisterRes

R = TypeVar("R", RegisterRes, QueryRes, PingRes)


class Requests:
    """See the module.

    Args:
        connection: the connection.
        address: of the server, for the texts of errors.
        group: of the client, which is closed with it.

    Attributes:
        ids: identifiers for requests.
        pending: those that wait for their answers, the oldest first.
    """

    def __init__(self, connection: ServerConnection, address: str, group: aio.Group) -> None:
        self._connection = connection
        self._address = address
        self._group = group
        self._loop = asyncio.get_running_loop()
        self.ids = itertools.count(1)
        self.pending: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, request_id: int, request: Message, response_type: type[R]) -> R:
        """Send a request and wait for its answer.

        Raises:
            ConnectionLostError, LocalProtocolError, RemoteProtocolError: as :meth:`send` and
                :meth:`answer`.
        """
        sent = await self.send(request_id, request)
        return await self.answer(request_id, sent, response_type)

    async def send(self, request_id: int, request: Message) -> asyncio.Future[Any]:
        """Send a request.

        Returns:
            What gets its answer, for :meth:`answer`.

        Raises:
            ConnectionLostError: nothing was sent.
            LocalProtocolError: it cannot be sent.
        """
        await self._connection.wait_writable()
        self.tell(request)
        sent = self.pending[request_id] = self._loop.create_future()
        return sent

    def tell(self, message: Message) -> None:
        """Send at once what has no answer; raises as :meth:`send`."""
        self.check_open()
        if not self._connection.send(message):
            raise self._not_sent()

    async def answer(self, request_id: int, sent: asyncio.Future[Any], response_type: type[R]) -> R:
        """Wait for the answer.

        Raises:
            ConnectionLostError: the connection was lost before it came.
            RemoteProtocolError: it is of another kind; the connection is closed.
        """
        try:
            response = await sent
        finally:
            self.pending.pop(request_id, None)
        if not isinstance(response, response_type):
            answer_type, expected = type(response).__name__, response_type.__name__
            text = f"{answer_type} answers request {request_id}, expected {expected}"
            self._connection.on_protocol_error(RemoteProtocolError(text))
            raise RemoteProtocolError(text)
        answer: R = response
        return answer

    def on_answer(self, request_id: int, response: Message) -> None:
        """An answer came."""
        # the requester may be gone (cancelled), or it answers a ping of keep_alive
        future = self.pending.get(request_id)
        if future is not None and not future.done():
            future.set_result(response)

    def fail(self, reason: str) -> None:
        """No more answers come."""
        for future in self.pending.values():
            if not future.done():
                future.set_exception(ConnectionLostError(reason))

    def check_open(self) -> None:
        """Raise ``ConnectionLostError`` if the client is closed, or the connection lost."""
        if self._connection.close_reason is not None or not self._group.is_open:
            raise self._not_sent()

    def _not_sent(self) -> ConnectionLostError:
        reason = self._connection.close_text
        if reason is None:
            reason = "connection lost" if self._group.is_open else reasons.CLOSED_BY_CLIENT
        return ConnectionLostError(f"{self._address}: {reason}")
