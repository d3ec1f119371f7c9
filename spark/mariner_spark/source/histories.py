"""Whether a gateway's events continue those that were read (``eventer_bridge.backends.history``).

A stream remembers the history of the events that it read of a server, and the last session.
Nothing is compared if the client may not see history events, or the server registers none.
"""

from collections.abc import Mapping
from typing import NamedTuple

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from mariner_spark.errors import HistoryError, OptionError
from mariner_spark.source.gateway import GatewayClient


class ServerHistory(NamedTuple):
    """History of a server, as a gateway reports it.

    Attributes:
        gateway: name of the gateway.
        history: history of the server's events there.
        session: the last session of the server there.
    """

    gateway: str
    history: History
    session: int


def find(gateway: GatewayClient) -> dict[int, History]:
    """Histories that a gateway reports, by server."""
    return history.read_all(gateway.latest([history.ANY_TYPE]))


def check(
    gateway: str, server: int, history_id: str | None, current: History | None, session: int
) -> None:
    """Refuse events that do not continue those that were read.

    Args:
        gateway: name of the gateway.
        server: the server.
        history_id: history that was read; None: unknown.
        current: history that the gateway reports; None: it reports none.
        session: the last session that was read, or is to be read.

    Raises:
        HistoryError: they do not.
    """
    reason = None if current is None else history.refusal(history_id, current, session)
    if reason is not None:
        raise HistoryError(
            f"server {server}: {gateway} does not go on from the events that were read: {reason}."
            " Begin a new query, with a new checkpoint and a new sink; startingOffsets tells"
            " where, if not at the beginning"
        )


def check_gateway(
    gateway: GatewayClient, server: int, history_id: str | None, session: int
) -> None:
    """As :func:`check`, with the history that a gateway reports now."""
    check(repr(gateway), server, history_id, find(gateway).get(server), session)


def merge(known: dict[int, ServerHistory], server: int, found: ServerHistory) -> None:
    """Add the history of a server on another gateway; the one that continues the other is kept.

    Raises:
        OptionError: neither continues the other.
    """
    other = known.get(server, found)
    for newer, older in ((other, found), (found, other)):
        if history.refusal(older.history.id, newer.history, older.session) is None:
            known[server] = newer
            return
    names = " and ".join(sorted((other.gateway, found.gateway)))
    raise OptionError(
        "host",
        f"{names} have different histories of server {server}, {other.history.id} and"
        f" {found.history.id}: one store was restored or made anew, and the other gateway has not"
        " followed; name those that have the same",
    )


def ids(known: Mapping[int, ServerHistory]) -> dict[int, str]:
    """Names of histories, by server."""
    return {server: i.history.id for server, i in known.items()}
