"""Reloading the configuration of a running gateway, at ``mariner reload`` or SIGHUP.

The file is read again, with all files it names. If anything is wrong, everything stays as it was.
Otherwise everything that differs is replaced at once (``config.taken_on``). The log and the answer
say what, what takes a restart, or why not; never a secret.

:func:`watch` reloads when the file changes, or one that it names. Files are compared by content: it
does not matter whether they are written, renamed, or behind a symbolic link that Kubernetes swaps.
They are looked at now and then rather than watched, because the link and its target may be
anywhere, and network file systems report no changes.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from eventer_bridge.errors import ConfigurationError, EventerBridgeError
from eventer_bridge.resources import read_regular
from mariner import limits
from mariner.gateway import access, config_file, logs
from mariner.gateway.config import GatewayConfig
from mariner.gateway.gateway import Gateway

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")


class Reloader:
    """See the module. Belongs to the event loop's thread.

    ``wanted`` is what was last read from the file, whether it could be used or not.
    """

    def __init__(self, path: Path, gateway: Gateway) -> None:
        self._path = path
        self._gateway = gateway
        self.wanted = gateway.config
        self._lock = asyncio.Lock()
        for control in gateway.controls:
            control.configuration = path
            control.handle("reload", lambda _: self.reload())

    async def reload(self) -> dict[str, list[str]]:
        """Reload, one after the other; returns keys: ``changed`` (replaced) and ``needs_restart``.

        Raises ConfigurationError, and ControlError if the gateway is stopping.
        """
        async with self._lock:
            try:
                report = await self._reload()
                self._gateway.is_reloaded = True
                return report
            except Exception as e:
                self._gateway.is_reloaded = False
                if isinstance(e, EventerBridgeError):  # others are logged with their traceback
                    reasons = str(e).splitlines()
                    mlog.error("configuration not reloaded", extra={"reasons": reasons})
                    audit.info("reload refused", extra={"reason": reasons[0]})
                raise

    async def try_reload(self) -> None:
        """As :meth:`reload`, but only the log says why it failed."""
        try:
            await self.reload()
        except EventerBridgeError:
            pass  # it is logged
        except Exception:
            mlog.exception("configuration not reloaded")

    async def _reload(self) -> dict[str, list[str]]:
        gateway = self._gateway
        wanted = self.wanted = await asyncio.to_thread(config_file.load, self._path)
        prepared = await gateway.prepare(wanted)
        report = {"changed": prepared.changed, "needs_restart": prepared.needs_restart}
        running = gateway.config
        if wanted.audit != running.audit:
            _audit(report)  # where it is told up to now
        await asyncio.to_thread(_configure_log, wanted, running, self._path)
        await gateway.use(prepared)
        _audit(report)
        level = logging.WARNING if prepared.needs_restart else logging.INFO
        mlog.log(level, "configuration reloaded", extra=report)
        return report


def _audit(report: Mapping[str, Sequence[str]]) -> None:
    changes = [(what, key) for what, keys in report.items() for key in keys]
    for first in range(0, max(len(changes), 1), limits.AUDITED_ITEMS):
        extra: dict[str, list[str]] = {what: [] for what in report}
        for what, key in changes[first : first + limits.AUDITED_ITEMS]:
            extra[what].append(key)
        audit.info("reload", extra=extra)


def _configure_log(wanted: GatewayConfig, running: GatewayConfig, path: Path) -> None:
    """Log as it is wanted, or as before; and open files anew that were moved away."""
    try:
        if (wanted.log, wanted.audit) != (running.log, running.audit):
            try:
                logs.configure(wanted.log, wanted.audit)
            except ConfigurationError:
                logs.configure(running.log, running.audit)
                raise
        logs.reopen()
    except ConfigurationError as e:
        raise ConfigurationError(f"{path}: {e}") from e


async def watch(path: Path, reloader: Reloader) -> None:
    """Reload at every change, once nothing changed between two looks; for ever.

    A reload that fails is not tried again until something else changes.
    """
    used = before = await asyncio.to_thread(_look, path, reloader.wanted)
    while True:
        await asyncio.sleep(limits.WATCH_PERIOD_S)
        now = await asyncio.to_thread(_look, path, reloader.wanted)
        if now == before != used:
            await reloader.try_reload()
            # the configuration may name other files now
            after = await asyncio.to_thread(_look, path, reloader.wanted)
            used = {key: now.get(key, value) for key, value in after.items()}
        before = now


def _look(path: Path, wanted: GatewayConfig) -> dict[str, object]:
    """What tells whether a file has changed. Any thread; blocks."""
    found = access.contents_of(wanted)
    try:
        data = read_regular(path, limits.MAX_CONFIGURATION_BYTES)
        found["configuration"] = hashlib.sha256(data).digest()
    except OSError as e:
        found["configuration"] = str(e)
    return found
