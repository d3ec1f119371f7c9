"""Every bound of following, replicating and relaying other servers."""

from typing import Final

from eventer_bridge import limits as core_limits
from eventer_bridge.net import limits as net_limits

MAX_GROUP_SERVERS: Final = 16
"""Servers of a group whose events are replicated, each by a connection of its own; a pair has one
other. A monitor server may report any number."""

READY_CATCH_UP_S: Final = 60.0
"""How long a server of a group that comes back lets the active one go on, to catch up with it; and
how long it waits to be told what the other one has of its own events. One whose store is new, or
was restored, waits for as long as it takes (``group``)."""

MAX_START_RETRY_S: Final = 600.0
"""How long a server of a group that cannot be started lets another one go on before it tries again;
the wait doubles up to that. Each attempt interrupts the other one for about a second: so that is
less than 0.2 % of the time."""

BLESSING_PERIOD_S: Final = 1.0
"""Period of checking whether the Monitor Server withdrew a blessing that was not given back."""

STALE_BLESSING_CHECKS: Final = 3
"""Checks in a row that find one: usually it takes milliseconds."""

TAKE_OVER_CATCH_UP_S: Final = 5.0
"""How long it then waits for the last events, when no server is active."""

MEMBER_ANSWER_S: Final = 3.0
"""How long the active server of a group may leave a ping unanswered when the Monitor Server blesses
another one: one that is stopped, or whose host is silent, does not go on. Should it be busy for
longer, both are active until it has found out."""

MAX_FOLLOWED_EVENTS: Final = 1_024
"""Events of a remote Event Server waiting for their commit; above it, the server is not read from.
Local registrations are committed after them, some 5 ms later, and find a core that is not full of
them (``MAX_PENDING_EVENTS``)."""

MAX_FOLLOWED_BYTES: Final = 16 << 20
"""The same of the memory that they take; and of events that come while others are caught up with:
if they take more, they are queried afterwards."""

MAX_FOLLOWED_SESSION_EVENTS: Final = 4 * core_limits.MAX_SESSION_EVENTS
"""Events of a session of a remote Event Server; the rest is left out, as it is if the payloads have
more than ``MAX_SESSION_BYTES``. Ours have a quarter of that, without those of modules."""

LAG_PERIOD_S: Final = 1.0
"""Period of querying a remote Event Server for a replication's lag; each costs it one query without
results."""

MAX_SYNCED_LAG_S: Final = 10.0
"""Lag of a synced replication: at least one check in so many seconds found nothing missing. A
network has hiccups of some seconds."""

MAX_SYNCED_LAG_EVENTS: Final = 100_000
"""The same in events: 2 s at the speed of catching up."""

REFUSED_PERIOD_S: Final = 2.0
"""Period of comparing the events of a server that is not replicated, because they do not continue
those kept here, again: a member of a group gets them back."""

LEFT_OUT_REPORT_S: Final = 10.0
"""Period of events that inform a remote Event Server of more skipped events."""

COMPARED_SESSIONS: Final = 100
"""Last replicated sessions of a remote Event Server whose types are compared with its own if it
does not have the very last one."""

COMPARED_TYPES: Final = 50
"""Types of those sessions in the query for the comparison."""

RELAYED_QUERY_TIMEOUT_S: Final = 60.0
"""Time limit for a relayed query, with all pages that it takes from the remote Event Server;
another server may return pages without end."""

MAX_RELAYED_QUERIES: Final = 4
"""Queries, or pages, requested from a remote Event Server at a time: it may answer them one after
the other. Others wait here, where clients take turns."""

RELAYED_RESPONSE_TIMEOUT_S: Final = 2 * RELAYED_QUERY_TIMEOUT_S
"""Time limit for a remote Event Server's answer on the connection for relayed queries. Closing it
ends the queries of all clients: no client waits for so long."""

SECOND_PAGE_EVENTS: Final = 64
"""Second page of a server's events for a relayed query: usually the first one suffices, and says
that more follow."""

MAX_RELAYED_BYTES: Final = 16 << 20
"""Payload bytes sent to a remote Event Server and not answered. Above it, clients are not read
from; above twice as many, their registrations fail. Less than the send buffer
(``MAX_SEND_BUFFER_BYTES``), or the connection would be closed as too slow."""

assert 2 * MAX_RELAYED_BYTES <= net_limits.MAX_SEND_BUFFER_BYTES
