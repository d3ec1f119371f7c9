"""Requests of operators to a running process, through a unix socket.

Only the user of the process (and root) can connect. A connection is one request and one response,
each a line of JSON; a request is an object with its name and argument, and says which process it
means (:class:`~eventer_bridge.control.client.Addressee`), by its store or its configuration: any
other one refuses it ::

    {"checkpoint": "/absolute/path", "to": {"store": …}}   →   {"error": null, "result": null}
    {"reload": null, "to": {"configuration": …}}   →   {"error": "why not", "result": null}
    {"status": null, "to": {}}   →   {"error": null, "result": {"name": …}}

:mod:`~eventer_bridge.control.server` answers them on the event loop;
:mod:`~eventer_bridge.control.client` sends them, and blocks.
"""
