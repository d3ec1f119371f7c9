"""Store and forward: registrations go to a queue on the local disk, and from there to a server.

:meth:`BufferedClient.register` returns when they are on the disk, whether there is a network or
not. They are forwarded in their order under request keys that they got when they were queued: each
is stored once, even if the application or the server is killed, or a connection is cut::

    async with await mariner.BufferedClient.open("buffer", servers) as buffered:
        await buffered.register("lamp/1", {"on": True})

What was queued together is synced together, and many registrations are under way to the server.
What a server refuses for good is put aside, with its reason. ``WhenFull`` says what becomes of more
than a bound of bytes. Belongs to the event loop's thread; SQLite works on a thread of its own.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, TypeVar, overload

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import Event, RegisterEvent, Timestamp, check_registrable
from eventer_bridge.net import limits as net_limits
from eventer_bridge.resources import Resource, call_on_done, in_time, uncancellable
from mariner import errors, limits
from mariner.client import buffer_file
from mariner.client.reconnecting import Connect, KeyMaker, ReconnectingClient
from mariner.client.values import Moment, TypeText, asked

mlog = logging.getLogger(__name__)

T = TypeVar("T")

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[RegisterEvent]).decode


class RegistrationBuffer(Resource):
    """The queue of a :class:`BufferedClient`, made by :meth:`open`; any process may add to one."""

    def __init__(self, file: buffer_file.BufferFile, executor: ThreadPoolExecutor) -> None:
        self._file = file
        self._executor = executor
        self._make_key = KeyMaker()
        self._added: list[tuple[buffer_file.BufferedRegistration, asyncio.Future[None]]] = []
        self._added_bytes = 0
        self._forwarded: list[int] = []
        self._refused: list[tuple[int, str]] = []
        self._wanted = asyncio.Event()
        self._written = asyncio.Event()  # replaced after each change
        self.async_group.spawn(self._run)

    @classmethod
    async def open(
        cls,
        directory: Path | str,
        *,
        max_bytes: int = limits.BUFFER_BYTES,
        when_full: buffer_file.WhenFull = buffer_file.WhenFull.REFUSE,
        is_locked: bool = False,
    ) -> Self:
        """Open a buffer, as :meth:`BufferedClient.open`; ``is_locked``: to forward it, alone.

        Raises BufferUnusableError if it is damaged, locked, or cannot be written.
        """
        executor = ThreadPoolExecutor(1, "buffer")

        def open_file() -> buffer_file.BufferFile:
            file = buffer_file.BufferFile(Path(directory), max_bytes, when_full)
            try:
                if is_locked:
                    file.lock()
            except BaseException:
                file.close()
                raise
            return file

        try:
            file = await asyncio.get_running_loop().run_in_executor(executor, open_file)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(file, executor)

    async def add(self, events: Sequence[RegisterEvent], request_key: str | None = None) -> None:
        """Add a registration; see :meth:`BufferedClient.register`."""
        row = _row(events, request_key or self._make_key())
        while self._added_bytes >= limits.MAX_BUFFER_GATHERED_BYTES and self.is_open:
            await self.wait_written()
        if not self.is_open:
            raise errors.ClosedError(f"{self._file.directory}: the buffer is closed")
        added: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._added.append((row, added))
        self._added_bytes += row.size_bytes
        self._wanted.set()
        await added

    async def read(self, after_id: int) -> list[buffer_file.BufferedRegistration]:
        """Some of what waits to be forwarded, in its order, behind this id."""
        return await self._call(
            self._file.read, after_id, limits.MAX_UNDER_WAY, limits.MAX_UNDER_WAY_BYTES
        )

    def forwarded(self, row_id: int) -> None:
        """Take out what a server has stored, soon."""
        self._forwarded.append(row_id)
        self._wanted.set()

    def refused(self, row_id: int, reason: str) -> None:
        """Put aside what a server refused for good, soon."""
        self._refused.append((row_id, reason))
        self._wanted.set()

    async def status(self) -> buffer_file.BufferStatus:
        """What is in it; raises BufferUnusableError."""
        return await self._call(self._file.status)

    async def retry_refused(self) -> int:
        """See :meth:`BufferFile.retry_refused`."""
        return await self._call(self._file.retry_refused)

    async def drop_refused(self) -> int:
        """See :meth:`BufferFile.drop_refused`."""
        return await self._call(self._file.drop_refused)

    async def wait_written(self, timeout_s: float | None = None) -> None:
        """Wait until something was written, or until the timeout."""
        await in_time(self._written.wait(), timeout_s)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, function, *args)
        except RuntimeError as e:  # it does nothing any more
            raise errors.ClosedError(f"{self._file.directory}: the buffer is closed") from e

    async def _run(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                await uncancellable(self._write())
        except asyncio.CancelledError:
            await uncancellable(self._write())
            raise
        finally:
            self.close()
            await uncancellable(self._call(self._file.close))
            self._executor.shutdown(wait=False)
            self._notify_written()

    async def _write(self) -> None:
        self._wanted.clear()
        added, self._added, self._added_bytes = self._added, [], 0
        forwarded, self._forwarded = self._forwarded, []
        refused, self._refused = self._refused, []
        if not (added or forwarded or refused):
            return
        change = buffer_file.BufferChange([row for row, _ in added], forwarded, refused)
        outcomes: Sequence[Exception | None]
        try:
            outcomes = await self._call(self._file.apply, change)
        except Exception as e:
            outcomes = [e] * len(added)
            if forwarded or refused:  # they are still there
                self._forwarded[:0], self._refused[:0] = forwarded, refused
                mlog.error("buffer cannot be written: %s", e, extra={"reason": str(e)})
                asyncio.get_running_loop().call_later(limits.BUFFER_RETRY_S, self._wanted.set)
        for (_, future), error in zip(added, outcomes, strict=True):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        self._notify_written()

    def _notify_written(self) -> None:
        self._written.set()
        self._written = asyncio.Event()


class BufferedClient(Resource):
    """See the module. Made by :meth:`open`."""

    def __init__(self, buffer: RegistrationBuffer, client: ReconnectingClient) -> None:
        self._buffer = buffer
        self._client = client
        self._under_way: dict[int, int] = {}  # bytes by id
        self._under_way_bytes = 0
        self._ended = asyncio.Event()
        self._last_reason: str | None = None
        self._close_reason: str | None = None
        self.async_group.spawn(self._run)
        for resource in (buffer, client):
            self.async_group.spawn(call_on_done, resource.wait_closing(), self.close)

    @classmethod
    async def open(
        cls,
        directory: Path | str,
        servers: Sequence[Connect],
        *,
        max_bytes: int = limits.BUFFER_BYTES,
        when_full: buffer_file.WhenFull = buffer_file.WhenFull.REFUSE,
    ) -> Self:
        """Open a buffer, and begin to forward what is in it.

        Args:
            directory: of the buffer; made if there is none.
            servers: see :class:`ReconnectingClient`. None of them need be there: while they decline
                the client, for whatever reason, registrations are queued, and the log says why.
            max_bytes: of the registrations in the buffer; its files take somewhat more.
            when_full: what becomes of a registration that has no room.

        Raises BufferUnusableError if it is damaged, forwarded by another process, or not writable.
        """
        buffer = await RegistrationBuffer.open(
            directory, max_bytes=max_bytes, when_full=when_full, is_locked=True
        )
        # what is queued is kept, and forwarded when somebody has mended what is wrong
        client = ReconnectingClient(servers, requires=["request_key"], gives_up=False)
        return cls(buffer, client)

    @property
    def close_reason(self) -> str | None:
        """Why it ended by itself; None: it did not."""
        return self._close_reason or self._client.close_reason

    @overload
    async def register(
        self, events: Sequence[RegisterEvent], request_key: str | None = None
    ) -> None: ...

    @overload
    async def register(
        self,
        events: TypeText,
        payload: Any = None,
        *,
        source_timestamp: Moment | None = None,
        request_key: str | None = None,
    ) -> None: ...

    async def register(  # type: ignore[misc]  # the second is a key, or a payload
        self,
        events: TypeText | Sequence[RegisterEvent],
        payload: Any = None,
        request_key: str | None = None,
        *,
        source_timestamp: Moment | None = None,
    ) -> None:
        """Queue a registration, all events or none; returns when it is on the disk.

        Or one event, as ``Client.register``: ``register("lamp/1", {"on": True})``.

        An event without a source timestamp gets the present time as one. A ``request_key`` is as of
        ``Client.register``; None: a new one. An application that repeats its own work after a crash
        gives the same key, events and source timestamps again, and they are stored once.

        Raises:
            BufferFullError: there is no room; nothing is queued.
            BufferUnusableError: the disk is full or failed. If a sync failed, it may be queued all
                the same.
            InvalidEventError, LocalProtocolError, TypeError: no server would take them.
            ClosedError: the client is closed.
        """
        one = asked(events, payload, request_key, source_timestamp)
        await self._buffer.add(one.events, one.request_key)

    async def status(self) -> buffer_file.BufferStatus:
        """What is in the buffer; raises BufferUnusableError."""
        return await self._buffer.status()

    async def drain(self) -> None:
        """Wait until nothing waits any more: all is stored, or was refused for good.

        Raises BufferUnusableError or ClosedError if it ended before.
        """
        while (await self.status()).waiting:
            await self._buffer.wait_written(limits.BUFFER_POLL_S)

    async def _run(self) -> None:
        try:
            await self._forward()
        except (errors.BufferUnusableError, errors.ClosedError) as e:
            self._close_reason = str(e)
            mlog.error("buffer cannot be read: %s", e, extra={"reason": str(e)})
        finally:
            self.close()
            await uncancellable(self._client.async_close())
            await uncancellable(self._buffer.async_close())

    async def _forward(self) -> None:
        last_id = 0
        while True:
            rows = await self._buffer.read(last_id)
            for row in rows:
                while self._under_way and (
                    len(self._under_way) >= limits.MAX_UNDER_WAY
                    or self._under_way_bytes + row.size_bytes > limits.MAX_UNDER_WAY_BYTES
                ):
                    self._ended.clear()
                    await self._ended.wait()
                self._send(row)
                last_id = row.id
            if not rows:
                await self._buffer.wait_written(limits.BUFFER_POLL_S)

    def _send(self, row: buffer_file.BufferedRegistration) -> None:
        try:
            events = _decode(row.events)
        except (msgspec.DecodeError, UnicodeError) as e:
            self._on_refused(row, f"damaged in the buffer: {e}")
            return
        self._under_way[row.id] = row.size_bytes
        self._under_way_bytes += row.size_bytes
        outcome = self._client.submit(events, row.key)
        outcome.add_done_callback(functools.partial(self._on_outcome, row))

    def _on_outcome(
        self, row: buffer_file.BufferedRegistration, outcome: asyncio.Future[Sequence[Event]]
    ) -> None:
        self._under_way_bytes -= self._under_way.pop(row.id)
        self._ended.set()
        error = outcome.exception()
        if error is None:
            self._buffer.forwarded(row.id)
        elif isinstance(error, errors.RegisterError | errors.LocalProtocolError):
            self._on_refused(row, str(error))
        # else it is closed, and they are forwarded the next time

    def _on_refused(self, row: buffer_file.BufferedRegistration, reason: str) -> None:
        level = logging.DEBUG if reason == self._last_reason else logging.WARNING
        self._last_reason = reason
        text = "registration refused and put aside: %s"
        mlog.log(level, text, reason, extra={"reason": reason})
        self._buffer.refused(row.id, reason)


def _row(events: Sequence[RegisterEvent], key: str) -> buffer_file.BufferedRegistration:
    """A registration to be added; see :meth:`BufferedClient.register`."""
    now = Timestamp.now()
    if len(events) > core_limits.MAX_SESSION_EVENTS:
        raise errors.LocalProtocolError(
            f"{len(events)} events in one registration, at most"
            f" {core_limits.MAX_SESSION_EVENTS} are allowed"
        )
    for event in events:
        check_registrable(event.type)
    dated = [
        i if i.source_timestamp is not None else msgspec.structs.replace(i, source_timestamp=now)
        for i in events
    ]
    if len(key) > core_limits.MAX_REQUEST_KEY_CHARACTERS:
        raise errors.LocalProtocolError(
            f"a request key of {len(key)} characters, at most"
            f" {core_limits.MAX_REQUEST_KEY_CHARACTERS} are allowed"
        )
    try:
        encoded = _encode(dated)
        key.encode()
        _decode(encoded)  # as it will be when it is forwarded
    except UnicodeEncodeError as e:
        raise errors.LocalProtocolError(f"a text has no UTF-8 form: {e}") from e
    except msgspec.DecodeError as e:
        raise InvalidEventError(str(e)) from e
    if len(encoded) > net_limits.MAX_FRAME_BYTES - limits.REQUEST_HEAD_BYTES:
        raise errors.LocalProtocolError(
            f"a registration of {len(encoded)} bytes, at most"
            f" {net_limits.MAX_FRAME_BYTES - limits.REQUEST_HEAD_BYTES} are allowed"
        )
    return buffer_file.BufferedRegistration(0, key, encoded, now.s * 1_000_000 + now.us)
