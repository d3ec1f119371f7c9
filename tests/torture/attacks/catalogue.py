"""All attacks, by name."""

from typing import Final

from tests.torture.attacks import logs, queries, registrations, shapes, strangers

ATTACKS: Final = {
    **strangers.ATTACKS,
    **logs.ATTACKS,
    **registrations.ATTACKS,
    **queries.ATTACKS,
    **shapes.ATTACKS,
}
