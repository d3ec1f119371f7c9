"""Imported by the fork server, once: see ``forked``."""

import gc
from importlib import import_module
from typing import Final

_NEEDED: Final = (
    "hat.event.backends.lmdb",
    "hat.event.server.main",
    "hat.mariner.server.main",
    "hat.monitor.server.main",
    "mariner.cli.backup",
    "mariner.cli.eventer_server",
    "mariner.cli.mariner_server",
    "mariner.cli.rsb",
    "mariner.cli.serve",
    "mariner.cli.store",
    "mariner.gateway.http",
)

for name in _NEEDED:
    import_module(name)

gc.collect()
gc.freeze()  # or each process would copy everything when it first looks for garbage
