"""Reloading when the configuration changes, or a file that it names.

Files are compared by content: it does not matter whether they are written, renamed, or behind a
symbolic link that Kubernetes swaps. They are looked at now and then rather than watched, because
the link and what it leads to may be anywhere, and file systems of networks tell of no changes.
"""

import asyncio
import hashlib
from pathlib import Path

from eventer_bridge.resources import read_regular
from mariner import limits
from mariner.gateway import access
from mariner.gateway.config import GatewayConfig
from mariner.gateway.reloading import Reloader


async def watch(path: Path, reloader: Reloader) -> None:
    """Reload at every change, once nothing changed between two looks; for ever.

    A reload that fails is not tried again until something else changes.

    Args:
        path: the configuration file.
        reloader: of the running gateway; its log says what came of it.
    """
    used = before = await asyncio.to_thread(_ext_look, path, reloader.wanted)
    while True:
        await asyncio.sleep(limits.WATCH_PERIOD_S)
        now = await asyncio.to_thread(_ext_look, path, reloader.wanted)
        if now == before != used:
            await reloader.try_reload()
            # the configuration may name other files now
            after = await asyncio.to_thread(_ext_look, path, reloader.wanted)
            used = {key: now.get(key, value) for key, value in after.items()}
        before = now


def _ext_look(path: Path, wanted: GatewayConfig) -> dict[str, object]:
    found = access.ext_contents(wanted)
    try:
        data = read_regular(path, limits.MAX_CONFIGURATION_BYTES)
        found["configuration"] = hashlib.sha256(data).digest()
    except OSError as e:
        found["configuration"] = str(e)
    return found
