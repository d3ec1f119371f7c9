"""Hooks of all tests."""

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that the gateway runs on."""
    return {"uvloop": uvloop.new_event_loop}
