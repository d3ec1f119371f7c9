"""The attacker: ``python -m tests.torture.attacks.attacker``.

Each line of its standard input is a step of an attack, as JSON: its name, ``prepare`` or ``run``,
and the target. A process is forked off for it, which answers with a line: what it counted. Where
it fails, the line is ``null``, and standard error has the traceback.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from tests.torture.attacks import catalogue
from tests.torture.attacks.attack import Target

NICE: Final = 5
"""A real attacker has a machine of its own: this one yields to who is measured."""


def main() -> None:
    """See the module."""
    os.nice(NICE)
    fork = multiprocessing.get_context("fork")
    for line in sys.stdin:
        process = fork.Process(target=_do, args=json.loads(line))
        process.start()
        process.join()
        if process.exitcode != 0:
            print("null", flush=True)


def _do(name: str, step: str, target: Sequence[Any]) -> None:
    facts = getattr(catalogue.ATTACKS[name], step)(Target(*target))
    print(json.dumps(facts or {}), flush=True)


if __name__ == "__main__":
    main()
