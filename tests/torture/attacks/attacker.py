"""An attacker's process: ``python -m tests.torture.attacks.attacker NAME STEP TARGET``.

Runs one step (``prepare`` or ``run``) of an attack and prints what it counted as JSON.
"""

import json
import os
import sys

from tests.torture.attacks import catalogue
from tests.torture.attacks.attack import Target

_NICE = 5
"""A real attacker has a machine of its own: this one yields to who is measured."""


def main() -> None:
    """See the module."""
    name, step, target = sys.argv[1:]
    os.nice(_NICE)
    attack = catalogue.ATTACKS[name]
    facts = getattr(attack, step)(Target(**json.loads(target)))
    print(json.dumps(facts or {}))


if __name__ == "__main__":
    main()
