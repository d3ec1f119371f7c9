"""How many examples a property is tried with: few, new ones each time; ``make torture`` many."""

import os
from typing import Final

EXAMPLES: Final = os.environ.get("EXAMPLES")


def examples(few: int) -> int:
    """So many, unless ``EXAMPLES`` in the environment tells how many."""
    return int(EXAMPLES) if EXAMPLES else few
