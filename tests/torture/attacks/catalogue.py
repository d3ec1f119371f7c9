"""All attacks, by name."""

from typing import Final

from tests.torture.attacks import (
    cursors,
    eventer,
    logs,
    queries,
    registrations,
    rsb,
    shapes,
    sharing,
    strangers,
    waiting,
)

ATTACKS: Final = {
    **strangers.ATTACKS,
    **logs.ATTACKS,
    **registrations.ATTACKS,
    **queries.ATTACKS,
    **cursors.ATTACKS,
    **shapes.ATTACKS,
    **eventer.ATTACKS,
    **rsb.ATTACKS,
    **waiting.ATTACKS,
    **sharing.ATTACKS,
}
