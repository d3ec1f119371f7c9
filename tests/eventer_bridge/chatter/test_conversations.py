"""Any sequence of messages: the protocol takes what 003 allows, and nothing else."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventer_bridge.chatter import conversation_oracle
from tests.support.examples import examples


@settings(max_examples=examples(150))
@given(st.binary(max_size=60))
def test_the_protocol_and_the_rules_agree(operations: bytes) -> None:
    conversation_oracle.check(operations)


def test_such_sequences_often_go_on_for_long() -> None:
    """Else the test above would only show that the first message is refused."""
    chance = random.Random(3)
    taken = [conversation_oracle.check(chance.randbytes(60)) for _ in range(3000)]
    assert sum(i >= 5 for i in taken) > 300
