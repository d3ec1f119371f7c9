"""Whether a gateway's events go on from those that were read (``eventer_bridge.backends.history``).

What was read of a server is known by the history that was told then, and the last session. A
client that may not see these events, and one of a server that tells of no history, compares
nothing here.
"""

from collections.abc import Mapping
from typing import NamedTuple

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from mariner_spark.errors import HistoryError, OptionError
from mariner_spark.source.gateway import GatewayClient


class Told(NamedTuple):
    """What a gateway told of a server.

    Attributes:
        gateway: its name.
        history: the history of the server's events that it has.
        session: the last session of them.
    """

    gateway: str
    history: History
    session: int


def find(gateway: GatewayClient) -> dict[int, History]:
    """Histories of the events that a gateway has, by server."""
    return history.read_all(gateway.latest([history.ANY_TYPE]))


def check(gateway: str, server: int, held: str | None, told: History | None, session: int) -> None:
    """Refuse events that do not go on from those that were read.

    Args:
        gateway: who told.
        server: the server.
        held: history that was read; None: not known.
        told: what was told; None: nothing.
        session: the last session that was read, or is to be read.

    Raises:
        HistoryError: they do not.
    """
    reason = None if told is None else history.refusal(held, told, session)
    if reason is not None:
        raise HistoryError(
            f"server {server}: {gateway} does not go on from the events that were read: {reason}."
            " Begin a new query, with a new checkpoint and a new sink; startingOffsets tells"
            " where, if not at the beginning"
        )


def check_gateway(gateway: GatewayClient, server: int, held: str | None, session: int) -> None:
    """The same, of what a gateway tells now; raises as :func:`check`."""
    check(repr(gateway), server, held, find(gateway).get(server), session)


def merge(known: dict[int, Told], server: int, told: Told) -> None:
    """Note what one more gateway told of a server: one of both has gone on from the other.

    Raises:
        OptionError: neither has.
    """
    other = known.get(server, told)
    for newer, older in ((other, told), (told, other)):
        if history.refusal(older.history.id, newer.history, older.session) is None:
            known[server] = newer
            return
    names = " and ".join(sorted((other.gateway, told.gateway)))
    raise OptionError(
        "host",
        f"{names} have different histories of server {server}, {other.history.id} and"
        f" {told.history.id}: one store was restored or made anew, and the other gateway has not"
        " followed; name those that have the same",
    )


def ids(told: Mapping[int, Told]) -> dict[int, str]:
    """Names of histories, by server."""
    return {server: i.history.id for server, i in told.items()}
