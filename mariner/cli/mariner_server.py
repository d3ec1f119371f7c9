"""Mariner servers as a target of the client commands."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final

import click
from typing_extensions import override

from eventer_bridge.model import EventId, EventType
from mariner import client
from mariner.cli import buffer, output
from mariner.cli import client as commands
from mariner.cli.query import query as query_command
from mariner.cli.run import report, run
from mariner.cli.target import Target, TargetWire, command_of, server_options
from mariner.cli.values import EVENT_ID, EVENT_ID_METAVAR
from mariner.client.replay import Start
from mariner.errors import ConnectionLostError, GapError


class MarinerTarget(Target):
    """A server that speaks Mariner (002)."""

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
@click.option(
    "--from-start",
    is_flag=True,
    help="Print what was persisted before, too, from the oldest event on.",
)
@click.option(
    "--after",
    metavar=EVENT_ID_METAVAR,
    multiple=True,
    type=EVENT_ID,
    help="Print what was persisted after this event, too. Can be repeated, for each server.",
)
@click.option(
    "--cursor",
    metavar="NAME",
    help="Print what the client has not acknowledged under this cursor. A new cursor begins at"
    " --from-start (default), or --after.",
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
    after: tuple[EventId, ...],
    cursor: str | None,
    ack_after_flush: bool,
) -> None:
    """Print new events, and earlier ones if asked, as JSON lines, until interrupted.

    A line on standard error says when the subscription is active, and when it is up to date; also
    if retention deleted events that were not seen, or if the store is not the one in which the
    cursor is (it was restored, or made anew), and then it goes on. It does not reconnect.

    Exit code 0: --count events were printed; 1: the connection failed or was lost, another
    connection has the cursor, or the event of --after is not stored (any more); 130: interrupted.
    """
    if from_start and after:
        raise click.UsageError("Give either --from-start or --after, not both.")
    if ack_after_flush and cursor is None:
        raise click.UsageError("--ack-after-flush needs --cursor.")
    wanted = event_types or commands.EVERYTHING
    start: Start | None = "earliest" if from_start else after or None
    if start is None and cursor is None:
        run(commands.subscribe_to(server, wanted, server_id, persisted, count))
    else:
        connecting = server.connect(
            subscriptions=wanted, server_id=server_id, start=start, cursor=cursor
        )
        run(_replay(connecting, count, is_acknowledged=ack_after_flush))


async def _replay(
    connecting: Awaitable[client.Client], count: int | None, *, is_acknowledged: bool
) -> None:
    async with await connecting as connection:
        report(f"subscribed at {connection.address}")
        telling = asyncio.create_task(_tell_up_to_date(connection))
        remaining = count
        try:
            while connection.is_open:
                try:
                    async for batch in connection.replay():
                        printed = batch if remaining is None else batch.first(remaining)
                        output.write_jsonl(printed.events)
                        if is_acknowledged:
                            await printed.ack()
                        if remaining is not None:
                            remaining -= len(printed.events)
                            if remaining <= 0:
                                return
                except GapError as e:
                    report(str(e))
        finally:
            telling.cancel()
        raise ConnectionLostError(f"{connection.address}: {connection.close_reason}")


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
