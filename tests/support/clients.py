"""Clients of a gateway that is now this one, now that one, in one place."""

from typing import Any

from mariner import client


async def connect(port: int, **options: Any) -> client.Client:
    """The client ``app`` of whatever listens there, with options of ``mariner.client.connect``."""
    return await client.connect(
        "127.0.0.1", port, client_name="app", client_token="secret", **options
    )
