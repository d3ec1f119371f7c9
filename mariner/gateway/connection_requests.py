"""Requests of operators about connections (``mariner status --connections``, and the console).

:func:`answer` runs on the event loop's thread of the gateway, :func:`ask` in another process. Rates
come from two answers (:func:`with_rates`), so that nothing is measured while nobody asks.
"""

import heapq
import logging
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from eventer_bridge import limits as core_limits
from eventer_bridge import slices, tls
from eventer_bridge.control import client
from eventer_bridge.control.client import Addressee
from eventer_bridge.core.quotas import AccountMember
from eventer_bridge.errors import ConfigurationError, ControlError
from eventer_bridge.model import EventType, cut
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Stream
from eventer_bridge.slices import Steps
from mariner import limits

if TYPE_CHECKING:
    from mariner.gateway.counts import Counted  # slow to import, and this is for commands, too

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")

REQUEST: Final = "connections"


class ConnectionRequest(msgspec.Struct, frozen=True):
    """A request; ``close`` closes those of a ``peer``, of any wire if none is named.

    ``operator`` is for the audit trail, as the sender says.
    """

    do: Literal["list", "close"]
    peer: str = ""
    wire: str = ""
    operator: Annotated[str, msgspec.Meta(max_length=core_limits.MAX_NAME_CHARACTERS)] = ""


class ConnectionInfo(msgspec.Struct, frozen=True):
    """A connection; ``client`` as it called itself, None before ``init`` and where peers have none.

    ``since`` is in ISO 8601, ``connected_s`` ago; None of both: this side connected. ``tls`` is the
    version, ``certificate`` the name in the peer's, which is valid ``certificate_until``. Of the
    ``subscriptions``, ``subscribed`` are the first. ``buffered_bytes`` is all memory held for it:
    what it sent and was not answered yet, and ``unread_bytes``, which it has not read.
    ``not_read`` are reasons for which it is not read from.
    """

    wire: str
    client: str | None
    peer: str
    since: str | None
    connected_s: float | None
    tls: str | None
    certificate: str | None
    certificate_until: str | None
    subscriptions: int
    subscribed: list[str]
    received_bytes: int
    sent_bytes: int
    unread_bytes: int
    buffered_bytes: int
    behind_s: float
    not_read: list[str]
    received_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None

    @property
    def certificate_text(self) -> str:
        """Name and last day of the certificate; empty: there is none."""
        if self.certificate is None or self.certificate_until is None:
            return ""
        return f"{self.certificate} until {self.certificate_until[:10]}"

    @property
    def subscription_text(self) -> str:
        """What it subscribed to, as far as it is told."""
        more = self.subscriptions - len(self.subscribed)
        return ", ".join([*self.subscribed, *([f"and {more:,} more"] if more else [])])


class ConnectionsAnswer(msgspec.Struct, frozen=True):
    """Connections, those furthest behind first, then those with most buffered, then the newest.

    At most ``limits.MAX_STATUS_CONNECTIONS``; so many are ``left_out``. ``at_s`` is a time of the
    gateway's clock.
    """

    at_s: float
    connections: list[ConnectionInfo]
    left_out: int = 0

    @property
    def left_out_text(self) -> str:
        """What there is besides; empty: nothing."""
        if not self.left_out:
            return ""
        return f"and {self.left_out:,} more: less far behind, with less buffered, or older"


def ask(socket: Path, request: ConnectionRequest, to: Addressee) -> ConnectionsAnswer:
    """Ask a running gateway through its control socket; blocks. Returns those closed, or all.

    Raises ControlError if there is no such connection, or no answer; ConfigurationError if the
    gateway has another version, and does not know such a request.
    """
    return client.request(
        socket,
        REQUEST,
        msgspec.to_builtins(request),
        ConnectionsAnswer,
        to=to,
        what=f"{socket}: the gateway",
        timeout_s=limits.STATUS_TIMEOUT_S,
    )


def with_rates(before: ConnectionsAnswer, after: ConnectionsAnswer) -> ConnectionsAnswer:
    """The later answer with the rates between the two, of connections that are in both."""
    seconds = after.at_s - before.at_s
    known = {(i.wire, i.peer): i for i in before.connections}
    rated = [_rated(known.get((i.wire, i.peer)), i, seconds) for i in after.connections]
    return replace(after, connections=rated)


def _rated(before: ConnectionInfo | None, after: ConnectionInfo, seconds: float) -> ConnectionInfo:
    if before is None or seconds <= 0:
        return after
    received = after.received_bytes - before.received_bytes
    sent = after.sent_bytes - before.sent_bytes
    if received < 0 or sent < 0:  # another one, of the same address
        return after
    rates = {"received_bytes_per_s": received / seconds, "sent_bytes_per_s": sent / seconds}
    return replace(after, **rates)


# --- in the gateway -------------------------------------------------------------------------

_Found: TypeAlias = tuple[str, Stream[Any]]
"""A connection and its wire."""


async def answer(gateway: "Counted", argument: Any) -> Any:
    """Answer a request (``control.server.HandlerCb``).

    Raises ConfigurationError if it is none, ControlError without such a connection.
    """
    try:
        request = msgspec.convert(argument, ConnectionRequest)
    except msgspec.ValidationError as e:
        raise ConfigurationError(f"{REQUEST}: {e}") from None
    found = _of_peer(gateway, request)
    members = await slices.run(_members(gateway))
    shown = await slices.run(_first(found))
    infos = await slices.run(_infos(shown, members))
    if request.do == "close":
        open_ = [stream for _, stream in found if stream.close_reason is None]
        if not open_:
            raise _none_of(request.peer)
        for stream in open_:
            _close(stream, request.operator)
    left_out = len(found) - len(shown)
    return msgspec.to_builtins(ConnectionsAnswer(time.monotonic(), infos, left_out))


def _of_peer(gateway: "Counted", request: ConnectionRequest) -> list[_Found]:
    """All connections; those that a request is about, if it names a peer."""
    found = [
        (name, stream)
        for name, wire in gateway.wires.items()
        if request.wire in {"", name}
        for stream in wire.connections()
        if stream.close_reason is None
    ]
    if request.do == "list":
        return found
    found = [(name, stream) for name, stream in found if stream.peer == request.peer]
    if not found:
        raise _none_of(request.peer)
    return found


def _none_of(peer: str) -> ControlError:
    return ControlError(f"{peer}: there is no connection of this address and port")


def _close(stream: Stream[Any], operator: str) -> None:
    stream.close(CloseReason.BY_OPERATOR, level=logging.INFO)
    more = {"operator": operator} if operator else {}
    audit.info("connection closed", extra={**stream.log_extra, **more})


def _members(gateway: "Counted") -> Steps[dict[Stream[Any], AccountMember]]:
    """What is known of connections whose clients were let in."""
    found: dict[Stream[Any], AccountMember] = {}
    for accounts in gateway.accounts.values():
        for account in accounts:
            for member in tuple(account.members):
                found[member.stream] = member
            yield
    return found


def _first(found: Collection[_Found]) -> Steps[list[_Found]]:
    """Those that are shown, in their order."""
    ranked: list[tuple[float, int, float, int, _Found]] = []
    for number, (wire, stream) in enumerate(found):
        accepted_at_s = stream.slot.accepted_at if stream.is_accepted else 0.0
        key = stream.behind_s, stream.buffered_bytes, accepted_at_s, number
        ranked.append((*key, (wire, stream)))
        yield
    return [i[-1] for i in heapq.nlargest(limits.MAX_STATUS_CONNECTIONS, ranked)]


def _infos(
    shown: Collection[_Found], members: dict[Stream[Any], AccountMember]
) -> Steps[list[ConnectionInfo]]:
    infos = []
    for wire, stream in shown:
        infos.append(_info(wire, stream, members.get(stream)))
        yield
    return infos


def _info(wire: str, stream: Stream[Any], member: AccountMember | None) -> ConnectionInfo:
    connected_s = since = None
    if stream.is_accepted:
        connected_s = time.monotonic() - stream.slot.accepted_at
        moment = datetime.now(UTC) - timedelta(seconds=connected_s)
        since = moment.isoformat(timespec="seconds")
    ssl_object = stream.ssl_object
    certificate = tls.peer_certificate(ssl_object)
    most = limits.MAX_SHOWN_QUERY_TYPE_CHARACTERS
    wanted: tuple[EventType, ...] = ()
    if member is not None:
        wanted = member.wanted.parts[0].query_types
    return ConnectionInfo(
        wire=wire,
        client=stream.client,
        peer=stream.peer,
        since=since,
        connected_s=connected_s,
        tls=None if ssl_object is None else ssl_object.version(),
        certificate=None if certificate is None else cut(certificate.name, most),
        certificate_until=None if certificate is None else certificate.until.isoformat(),
        subscriptions=len(wanted),
        subscribed=[_text_of(i) for i in wanted[: limits.MAX_SHOWN_QUERY_TYPES]],
        received_bytes=stream.read_bytes,
        sent_bytes=stream.written_bytes,
        unread_bytes=stream.unread_bytes,
        buffered_bytes=stream.buffered_bytes,
        behind_s=stream.behind_s,
        not_read=sorted(stream.pauses),
    )


def _text_of(query_type: EventType) -> str:
    """A query type, cut; never joined in full: it may be as long as a message."""
    most = limits.MAX_SHOWN_QUERY_TYPE_CHARACTERS
    return cut("/".join(i[: most + 1] for i in query_type[: most + 1]), most)
