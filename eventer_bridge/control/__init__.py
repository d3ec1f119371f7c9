"""Requests of operators to a running process, through a unix socket.

Only the user of the process (and root) can connect. A connection is one request and one response,
each a line of JSON; a request is an object with one key, its name::

    {"checkpoint": "/absolute/path"}   →   {"error": null, "result": null}
    {"reload": null}                   →   {"error": "why not", "result": null}
    {"status": null}                   →   {"error": null, "result": {"name": …}}

:mod:`~eventer_bridge.control.server` answers them on the event loop;
:mod:`~eventer_bridge.control.client` sends them, and blocks.
"""
