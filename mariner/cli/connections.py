"""Connections of a running gateway: ``mariner status --connections``, ``mariner disconnect``."""

from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from eventer_bridge.control.client import Addressee
from eventer_bridge.model import printable
from mariner.cli import output
from mariner.cli.run import errors
from mariner.cli.target import find_gateway, gateway_option
from mariner.cli.values import duration
from mariner.gateway import connection_requests
from mariner.gateway.connection_requests import (
    ConnectionInfo,
    ConnectionRequest,
    ConnectionsAnswer,
)


@click.command()
@gateway_option
@click.argument("address")
def disconnect(path: Path, address: str) -> None:
    """Close a connection of a running gateway.

    ADDRESS is that of its peer, with the port, as `mariner status --connections` shows it. What was
    sent to the peer before still arrives, if it reads; it may connect again. To keep a client out,
    remove it from the configuration, or its token, and `mariner reload`.

    Exit code 0: closed; 1: there is no such connection, or no gateway; 2: the configuration cannot
    be read, or has neither a store nor `control`.
    """
    with errors():
        socket, to = find_gateway(path)
        closed = connection_requests.ask(socket, ConnectionRequest("close", address), to)
    for i in closed.connections:
        client = "" if i.client is None else f" of client {printable(i.client)}"
        output.write_text(f"closed: {i.peer} ({i.wire}){client}")


def ask(socket: Path, to: Addressee) -> ConnectionsAnswer:
    """Ask a running gateway for its connections; blocks. Raises as ``connection_requests.ask``."""
    return connection_requests.ask(socket, ConnectionRequest("list"), to)


def render(answer: ConnectionsAnswer) -> RenderableType:
    """The connections, and how many there are besides."""
    names = "CLIENT", "WIRE", "ADDRESS", "CONNECTED", "TLS", "CERTIFICATE", "SUBSCRIBED"
    table = output.table(*names, "IN/S", "OUT/S", "BUFFERED", "BEHIND", left=len(names))
    table.add_column("NOT READ FROM")
    for i in answer.connections:
        client, tls, since = i.client or "", i.tls or "", _since(i)
        cells = client, i.wire, i.peer, since, tls, i.certificate_text, i.subscription_text
        numbers = (
            _rate(i.received_bytes_per_s),
            _rate(i.sent_bytes_per_s),
            decimal(i.buffered_bytes) if i.buffered_bytes else "",
            duration(i.behind_s) if i.behind_s else "",
        )
        table.add_row(*[Text(printable(j)) for j in (*cells, *numbers, ", ".join(i.not_read))])
    parts: list[RenderableType] = [table]
    if answer.left_out:
        parts.append(answer.left_out_text)
    return Group(*parts)


def _since(of: ConnectionInfo) -> str:
    return "" if of.connected_s is None else duration(of.connected_s)


def _rate(bytes_per_s: float | None) -> str:
    return "" if bytes_per_s is None else decimal(round(bytes_per_s))
