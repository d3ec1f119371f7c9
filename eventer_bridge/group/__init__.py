"""A group: servers with one commit log, of which one is active; no machine's death loses an event."""
