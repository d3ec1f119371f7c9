"""Bounds of the console, with their units and reasons."""

from typing import Final

from eventer_bridge.net.quota import Bounds

SCRAPE_PERIOD_S: Final = 2.0
"""Between two readings of ``/metrics``: what a person calls live, and a few ms for the gateway."""

PING_PERIOD_S: Final = 1.0
"""Between two pings of a gateway: they tell that what is shown is of now."""

SILENT_S: Final = 3.0
"""Without an answer, after which a gateway is shown as failing, and what is known of it as old:
longer than a busy one takes, and seen by a person within 5 s."""

OLD_METRICS_S: Final = 6.0
"""Age of metrics that are shown as old: reading them may take 4 s."""

TIMEOUT_S: Final = 10.0
"""For whatever a gateway is asked in the background."""

QUERY_TIMEOUT_S: Final = 60.0
"""For what a person asks."""

MAX_QUERIES: Final = 8
"""Of a gateway at a time, each with its connection, until the next one waits: more slow ones than
people ask for, and few of the connections that a gateway lets in."""

MAX_METRICS_BYTES: Final = 2 << 20
"""Of ``/metrics``: 100 times what a gateway with few clients has."""

MAX_HISTORY_POINTS: Final = 150
"""Of the charts of rates and latencies: five minutes."""

WINDOW_SCRAPES: Final = 6
"""Readings over which latencies are told: of fewer events a quantile says little."""

MAX_ALARMS: Final = 1_000
"""Raised alarms of a gateway that are shown; further ones are counted."""

MAX_ALARM_BYTES: Final = 4_096
"""Of the payload of an alarm: those of ``threshold`` are much smaller."""

MAX_TYPES: Final = 20_000
"""Event types of a tree, about 20 MB; a pattern selects among more."""

MAX_TREE_NODES: Final = 60_000
"""Nodes of a tree: types share most of their segments."""

MAX_TREE_CHARACTERS: Final = 8 << 20
"""Of all segments of a tree."""

MAX_DEPTH: Final = 32
"""Levels of a tree; segments below are one."""

MAX_CHILDREN: Final = 200
"""Shown below one node, or found by a search: more are not looked at, but searched."""

MAX_NODES: Final = 1_000
"""Of a tree that a browser is sent at a time."""

LAST_VALUES: Final = 20
"""Events of the picked type that are shown beside the tree."""

MAX_TAIL_EVENTS: Final = 500
"""That a tail keeps."""

MAX_TAIL_BYTES: Final = 4 << 20
"""Of payloads that a tail keeps."""

MAX_SHOWN_EVENTS: Final = 100
"""Of a tail, in a browser: it is sent them anew each second."""

MAX_QUERY_ROWS: Final = 1_000
"""Of an answer that is shown and drawn."""

MAX_QUERY_BYTES: Final = 8 << 20
"""Of payloads of such an answer."""

MAX_SERIES: Final = 12
"""Of a chart: more colours are not told apart."""

MAX_EXCERPT_CHARACTERS: Final = 200
"""Of a type or payload in a row."""

BINARY_SHOWN_BYTES: Final = 32
"""Of a binary payload, in a row."""

MAX_UNFOLDED_BYTES: Final = 32 << 10
"""Of a payload that is shown unfolded."""

MAX_NUMBERS: Final = 20
"""Numbers of a payload that can be drawn."""

MAX_INPUT_CHARACTERS: Final = 64 << 10
"""Of what is typed into a field."""

MAX_LINK_CHARACTERS: Final = 4_096
"""Of a link to a view; what does not fit is not in it. The door lets 16 KiB of a request pass."""

MAX_PAGES: Final = 32
"""Open pages of all browsers: each has its own tree, tail and answer."""

SESSION_S: Final = 12 * 3_600
"""From a login until it has to be repeated: a working day."""

MAX_SESSIONS: Final = 64
"""Logins at a time; a further one ends the oldest."""

MAX_LOGIN_BYTES: Final = 8 << 10
"""Of a login form."""

CONNECTIONS: Final = Bounds(new=1_000, new_per_address=512, known=512, known_per_address=512)
"""Connections at a time, before a login is found in a request of theirs (as many as a gateway has
before init; each takes 20 kB, and 50 kB more in a TLS handshake) and since then: a browser has up
to six, and a web socket for each page. An address may be a proxy, with everybody behind it. Fewer
if the limit of open files requires it."""

RESERVED_DESCRIPTORS: Final = 128
"""Open files other than those: connections to gateways, files that are sent."""

MAX_HEAD_BYTES: Final = 16 << 10
"""Of a request, without its body. A browser sends below 1 kB, and cookies, which ports of a host
share. The worst takes 8 ms to parse."""

MAX_WEB_SOCKET_BYTES: Final = 1 << 20
"""Of a message of a browser that is logged in."""

STOP_TIMEOUT_S: Final = 3
"""For browsers to hear of the end."""

REQUEST_TIMEOUT_S: Final = 10.0
"""From ``accept``, or the answer before, to the end of a request."""
