"""A group: servers with one commit log, one of them active; no machine's death loses an event."""
