"""Every queue of the gateway's process, and what bounds it.

A queue is what something waits in: a deque, a line, a list or a buffer that begins empty. What a
peer can make grow in bytes is on the account of memory, and a test fills it; for any other there is
a reason why that need not be. A new queue has to be entered here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.net import limits as net_limits
from eventer_bridge.remote import limits as remote_limits
from mariner import limits as mariner_limits
from tests.eventer_bridge.remote import test_replication_turns
from tests.mariner.gateway import test_http
from tests.mariner.server import test_buffers, test_memory

ROOT: Final = Path(__file__).parents[1]

PACKAGES: Final = ("eventer_bridge", "mariner/gateway", "mariner/server", "mariner/wire")
"""Of the gateway's process."""

QUEUES: Final = {
    "FairGate",
    "FairLine",
    "OrderedDict",
    "Queue",
    "QueryTurns",
    "Semaphore",
    "SimpleQueue",
    "ThreadPoolExecutor",
    "Turns",
    "WorkQueue",
    "bytearray",
    "deque",
}


class OnAccount(NamedTuple):
    """What waits in it is on the account of memory.

    Attributes:
        shown_by: a test that fills it, and looks at the account.
    """

    shown_by: object


class Bounded(NamedTuple):
    """It is bounded otherwise.

    Attributes:
        why: how.
    """

    why: str


_RECEIVED: Final = OnAccount(test_buffers.test_half_frames)
_UNREAD: Final = OnAccount(test_buffers.test_what_is_not_read_counts_below_the_high_water_mark)
_REGISTRATIONS: Final = OnAccount(test_memory.test_registrations_that_wait_until_the_core_has_room)
_LARGE: Final = OnAccount(test_memory.test_large_registrations_that_wait_for_their_turn)
_ASKED: Final = OnAccount(test_memory.test_queries_that_wait)
_FOLLOWED: Final = OnAccount(test_replication_turns.test_large_events_are_bounded_by_their_bytes)

_CONFIGURED: Final = Bounded("as many as are configured")
_OF_CONNECTIONS: Final = Bounded("one for each connection, of which there are few")
_UNDER_WAY: Final = Bounded("sessions that are under way, with which the core is full")

TABLE: Final[dict[str, OnAccount | Bounded]] = {
    # received
    "FrameDecoder._buffer": _RECEIVED,
    "FrameDecoder.frames": _RECEIVED,
    "NotificationDecoder._buffer": _RECEIVED,
    "MarinerProtocol._messages": _RECEIVED,
    # registrations
    "Gathering._clients": _REGISTRATIONS,
    "ClientRegistrations._gathered": _REGISTRATIONS,
    "ClientRegistrations.unanswered": _REGISTRATIONS,
    "EventCore._waiting": _REGISTRATIONS,
    "EventCore.lane": _LARGE,
    "FairGate._waiting": _LARGE,
    "ClientRegistrations._encoding": Bounded("large sessions that have the lane"),
    "SessionCore._handing_over": _UNDER_WAY,
    "EventCore._notifying": _UNDER_WAY,
    "GroupCommit._groups": _UNDER_WAY,
    "GroupCommit._ending": _UNDER_WAY,
    "RowBatch.operations": _UNDER_WAY,  # in place of a WriteBatch
    "StorageThread._jobs": Bounded("the first group, and few requests of operators"),
    "ModuleRunner._queue": _UNDER_WAY,
    "ModuleRunner._ended": _UNDER_WAY,
    "ModuleSessions._sessions": _CONFIGURED,
    "ModuleSessions._interrupted": _CONFIGURED,
    "WorkQueue._waiting": _UNDER_WAY,
    # queries
    "ClientQueries._waiting": _ASKED,
    "ClientQueries._heard": Bounded("large sessions that are under way"),
    "QueryTurns.new": Bounded("one query of each connection"),
    "QueryTurns.paused": Bounded("limits.MAX_QUERIES_BEGUN"),
    "Readers._turns": Bounded("its lines"),
    "Readers._held_up": Bounded("limits.MAX_QUERIES_BEGUN"),
    "Readers._begun": Bounded("limits.READERS, and threads of queries that pause"),
    "Readers._threads": Bounded("limits.MAX_QUERIES_BEGUN"),
    "RelayCore._query_gate": Bounded("one query of each connection"),
    # sending
    "Stream._unsent": _UNREAD,
    "ChatterProtocol._unsent": _UNREAD,
    # replays
    "ClientService.joining": Bounded("one replay of each connection"),
    "Replay._held": OnAccount(test_memory.test_notifications_that_are_held_for_a_replay),
    # other servers
    "Feed._backlog": _FOLLOWED,
    "_Begun.events": _FOLLOWED,
    "EventerClient._queued": Bounded(
        "what one other server sent before its first answer, one frame"
    ),
    "RelayCore._feeds": Bounded("two"),
    "RelayCore._positions": Bounded("two"),
    "Gateway._replications": Bounded("remote.limits.MAX_GROUP_SERVERS, or as configured"),
    "_Import._new_types": Bounded("a command, not the gateway"),
    # connections
    "Acceptor._listeners": _CONFIGURED,
    "Admission.turns": _OF_CONNECTIONS,
    "Turns._waiting": _OF_CONNECTIONS,
    "_Victims._maybe_silent": Bounded("net.limits.MAX_NEW_CONNECTIONS"),
    "_Victims._sent": Bounded("net.limits.MAX_NEW_CONNECTIONS"),
    "LoginPenalties._settled_at": Bounded("net.limits.MAX_FAILED_ADDRESSES"),
    "Announcer._waiting": Bounded("two short events of each connection that comes or goes"),
    "ScryptChecks._failed": Bounded("limits.MAX_KNOWN_CHECKS"),
    "ScryptChecks._right": Bounded("limits.MAX_KNOWN_CHECKS"),
    "ScryptChecks._wrong": Bounded("limits.MAX_KNOWN_CHECKS"),
    "ScryptChecks._thread": Bounded("one job"),
    "PayloadSchemas._thread": Bounded("one job, of who has the lane"),
    "StoreControl._thread": Bounded("requests of operators"),
    # what is known of types
    "GroupCommit._type_tables": Bounded("one of each listener"),
    "TypeRegistry._visible": Bounded("limits.MAX_VISIBLE_BYTES"),
    "VisibleTypes._flags": Bounded("limits.MAX_VISIBLE_BYTES"),
    "_Owner.suffixes": Bounded("two"),
    # logs
    "LastErrors._last": Bounded("mariner.limits.MAX_STATUS_ERRORS"),
    "LogRate._buckets": Bounded("mariner.limits.MAX_LOG_SOURCES"),
    "Pipeline._queue": Bounded("mariner.limits.MAX_LOG_QUEUE_LINES"),
    "Pipeline._replaced": _CONFIGURED,
    # configuration
    "Authenticator._nobodys": _CONFIGURED,
    "Bridge._informers": _CONFIGURED,
    "Conditions._conditions": _CONFIGURED,
    "EventCore._observers": Bounded("one of each listener and module"),
    "Gateway._parts": _CONFIGURED,
    "ModuleRunner._modules": _CONFIGURED,
    "Rights._rules": _CONFIGURED,
    "Shares._subscriptions": _CONFIGURED,
    "Shares.all": _CONFIGURED,
    "SpecializedModule._subscriptions": _CONFIGURED,
}


def test_every_queue_is_on_the_account_or_bounded() -> None:
    assert {*queues()} == {*TABLE}


def test_the_limits_exist() -> None:
    modules = {
        "limits": limits,
        "mariner.limits": mariner_limits,
        "net.limits": net_limits,
        "remote.limits": remote_limits,
    }
    named = [i.why for i in TABLE.values() if isinstance(i, Bounded) and "limits." in i.why]
    for why in named:
        module, _, name = why.split(",")[0].rpartition(".")
        assert getattr(modules[module], name) > 0, why


def test_answers_over_http_are_on_the_account() -> None:
    assert callable(test_http.test_metrics_that_nobody_reads_are_on_the_account)


def queues() -> Iterator[str]:
    """Attributes that are made as queues, with the class of each."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    for target, value in assignments(node):
                        if is_queue(value):
                            yield f"{node.name}.{target}"


def assignments(cls: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """What is assigned to attributes of ``self``."""
    for node in ast.walk(cls):
        pairs: list[tuple[ast.expr, ast.expr]]
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.Assign):
            pairs = [pair for i in node.targets for pair in _pairs(i, node.value)]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield target.attr, value


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [*zip(target.elts, value.elts, strict=False)]
    return [(target, value)]


def is_queue(value: ast.expr) -> bool:
    """Whether something is made that others wait in."""
    if isinstance(value, ast.List):
        return not value.elts
    if isinstance(value, ast.ListComp):
        return True
    if not isinstance(value, ast.Call):
        return False
    made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return ast.unparse(made).rpartition(".")[2] in QUEUES
