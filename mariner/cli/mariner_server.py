"""Mariner servers as a target of the client commands."""

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal

import click
from typing_extensions import override

from eventer_bridge.model import EventId, EventType
from eventer_bridge.resources import Tasks, closed_on_error
from mariner import client
from mariner.cli import buffer, output
from mariner.cli import client as commands
from mariner.cli.query import query as query_command
from mariner.cli.run import report, run
from mariner.cli.target import Target, TargetWire, command_of, server_options
from mariner.cli.values import EVENT_ID, EVENT_ID_METAVAR
from mariner.client.connection import CLOSED_BY_CLIENT
from mariner.client.replay import Start
from mariner.errors import ConnectionLostError, GapError


class MarinerTarget(Target):
    """A server of the Mariner protocol."""

    @override
    async def connect(
        self,
        *,
        subscriptions: Iterable[EventType] = (),
        server_id: int | None = None,
        persisted: bool = False,
        timeout_s: float = 10,
        start: Start | None = None,
        cursor: str | None = None,
        histories: Mapping[int, str] | None = None,
    ) -> client.Client:
        return await client.connect(
            self.host,
            self.port,
            client_name=self.name,
            client_token=self.token,
            subscriptions=subscriptions,
            server_id=server_id,
            persisted=persisted,
            start=start,
            cursor=cursor,
            histories=histories,
            ssl=self.ssl_context(),
            connect_timeout_s=timeout_s,
        )


MARINER: Final = TargetWire(
    MarinerTarget,
    server_options("MARINER", 23014),
    {"query": "Only this gateway's server understands --id, --payload and --unique-type."},
)


@click.command()
@commands.subscribe_options
@click.option("--from-start", is_flag=True, help="Begin with the oldest event that is stored.")
@click.option(
    "--from-now", is_flag=True, help="Begin with what comes from now on. Default, without --cursor."
)
@click.option(
    "--after",
    metavar=EVENT_ID_METAVAR,
    multiple=True,
    type=EVENT_ID,
    help="Begin with what was stored after this event. Can be repeated, for each server.",
)
@click.option(
    "--cursor",
    metavar="NAME",
    help="Begin with what the client has not acknowledged under this cursor. A new cursor begins at"
    " --from-start (default), --from-now or --after.",
)
@click.option(
    "--ack-after-flush",
    is_flag=True,
    help="Acknowledge what was printed, once standard output has taken it: what was printed and not"
    " acknowledged is printed again. Default: the cursor is only read, and does not move.",
)
def subscribe_or_replay(
    server: MarinerTarget,
    *,
    event_types: tuple[EventType, ...],
    server_id: int | None,
    persisted: bool,
    count: int | None,
    from_start: bool,
    from_now: bool,
    after: tuple[EventId, ...],
    cursor: str | None,
    ack_after_flush: bool,
) -> None:
    """Print events as JSON lines as they come, and earlier ones if asked, until interrupted.

    If the connection is lost, it connects again and goes on behind what it printed: each event is
    printed once, when it is persisted. With --cursor, what was not acknowledged is printed again. A
    server that cannot replay (a relay, or one of others) is only listened to, without --cursor and
    the like, until the connection is lost; it may send events before they are persisted, unless
    --persisted asks it to wait.

    Lines on standard error say when it is subscribed; why it is not connected, and when it tries
    again; when it is up to date with what was stored before; if retention deleted events that were
    not seen; or if the store is another one (it was restored, or made anew).

    Exit code 0: --count events were printed; 1: the first connection failed, the server declines
    the client, another connection has the cursor, or the event of --after is not stored (any more);
    130: interrupted.
    """
    starts = {"--from-start": from_start, "--from-now": from_now, "--after": after}
    given = [name for name, is_given in starts.items() if is_given]
    if len(given) > 1:
        raise click.UsageError(f"Give either {' or '.join(given)}, not both.")
    if ack_after_flush and cursor is None:
        raise click.UsageError("--ack-after-flush needs --cursor.")
    wanted = event_types or commands.EVERYTHING
    is_live = from_now or not (from_start or after or cursor)
    follow = _Follow(
        functools.partial(server.connect, subscriptions=wanted, server_id=server_id),
        "now" if is_live else "earliest" if from_start else after or None,
        cursor,
        is_acknowledged=ack_after_flush,
    )

    async def subscribe() -> None:
        begin = after if after and cursor is None else None
        async with await server.connect(start=begin) as connection:  # or it is told why not
            can_replay = "replay" in connection.extensions
        if can_replay or cursor or not is_live:
            await follow.run(count)
        else:
            await commands.subscribe_to(server, wanted, server_id, persisted, count)

    run(subscribe())


class _Follow:
    """Prints a replay, over however many connections."""

    def __init__(
        self,
        connect: Callable[..., Awaitable[client.Client]],
        start: Start | Literal["now"] | None,
        cursor: str | None,
        *,
        is_acknowledged: bool,
    ) -> None:
        self._connect = connect
        self._start: Start | Literal["now"] | None = start
        self._cursor = cursor
        self._is_acknowledged = is_acknowledged

    async def run(self, count: int | None) -> None:
        following = client.ReconnectingClient([self._open], start=self._start, cursor=self._cursor)
        remaining = count
        with buffer.reporting(logging.WARNING):
            async with Tasks() as self._tasks, following:
                async for batch in _over_gaps(following):
                    printed = batch if remaining is None else batch.first(remaining)
                    output.write_jsonl(printed.events)
                    if self._is_acknowledged:
                        await printed.ack()
                    if remaining is not None:
                        remaining -= len(printed.events)
                        if remaining <= 0:
                            return
                raise ConnectionLostError(following.close_reason or CLOSED_BY_CLIENT)

    async def _open(self, **options: Any) -> client.Client:
        connection = await self._connect(**options)
        async with closed_on_error(connection):
            if "start" in options:  # else it is only to find where "now" is
                report(f"subscribed at {connection.address}")
                if self._start != "now":
                    self._tasks.spawn(_tell_up_to_date, connection)
        return connection


async def _over_gaps(following: client.ReconnectingClient) -> AsyncIterator[client.ReplayBatch]:
    while True:
        try:
            async for batch in following.replay():
                yield batch
        except GapError as e:
            report(str(e))
        else:
            return


async def _tell_up_to_date(connection: client.Client) -> None:
    with contextlib.suppress(ConnectionLostError):
        await connection.wait_up_to_date()
        report("up to date")


subscribe_or_replay.name = "subscribe"
ping, query, subscribe = (
    command_of(MARINER, i) for i in (commands.ping, query_command, subscribe_or_replay)
)
_NAMELESS: Final = MARINER._replace(options=server_options("MARINER", 23014, is_named=False))
register = command_of(_NAMELESS, buffer.buffering(commands.register))
forward = command_of(_NAMELESS, buffer.forward)
