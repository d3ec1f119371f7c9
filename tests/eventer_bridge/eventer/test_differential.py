"""Our decoder and hat-sbs never disagree, except where hat-sbs should be stricter.

Messages are generated, encoded by hat-sbs, and changed; see ``differential``.
"""

import collections
import os
from typing import Final

import pytest

from tests.eventer_bridge.eventer.differential import judge
from tests.eventer_bridge.eventer.message_generator import NAMES, MessageGenerator

N_MESSAGES: Final = int(os.environ.get("DIFFERENTIAL_MESSAGES", "5_000"))
"""Of each seed; ``make torture`` has more of them."""
SEEDS: Final = (1, 2, 3, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_decoder_and_hat_sbs_never_disagree(seed: int) -> None:
    generator = MessageGenerator(seed)
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    for _ in range(N_MESSAGES):
        name, data = generator.message()
        seen[name, judge(name, data)] += 1

    # the messages are worth the name of a test
    total: collections.Counter[str] = collections.Counter()
    for (_, what), n in seen.items():
        total[what] += n
    assert total["accepted"] > N_MESSAGES / 3, total
    assert total["malformed"] > N_MESSAGES / 4, total
    assert total["inadmissible"] > N_MESSAGES / 20, total
    assert total["needless zeros"] < N_MESSAGES / 100, total
    for name in NAMES:
        assert seen[name, "accepted"] > N_MESSAGES / 50, (name, total)
        assert seen[name, "malformed"] > N_MESSAGES / 100, (name, total)


def test_generator_depends_on_its_seed_only() -> None:
    first, second, other = (MessageGenerator(seed) for seed in (1, 1, 2))
    messages = [first.message() for _ in range(100)]
    assert messages == [second.message() for _ in range(100)]
    assert messages != [other.message() for _ in range(100)]
