"""``docs/protocol.md`` and ``tests/vectors``: what they say is what a gateway does."""
