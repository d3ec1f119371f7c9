"""All attacks, by name."""

from typing import Final

from tests.torture.attacks import eventer, logs, queries, registrations, rsb, shapes, strangers

ATTACKS: Final = {
    **strangers.ATTACKS,
    **logs.ATTACKS,
    **registrations.ATTACKS,
    **queries.ATTACKS,
    **shapes.ATTACKS,
    **eventer.ATTACKS,
    **rsb.ATTACKS,
}
