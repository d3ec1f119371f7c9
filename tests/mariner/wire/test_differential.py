"""Codec and contract never disagree.

The codec decodes into typed structs and does not ask ``schemas/mariner.yaml``; here it is
held to it, with messages that are generated and changed. The other verdict is that of
Python's JSON parser and of ``jsonschema-rs`` with the whole schema; of ``jsonschema``, which is
a thousand times slower, for some of them and wherever the first two disagree. The codec's bounds
of registered payloads, which the contract does not have, are added to it.
"""

import collections
import json
import os
from typing import Any, Final, NoReturn

import jsonschema
import jsonschema_rs
import pytest

from mariner.errors import ContractError
from mariner.wire import codec, contract
from mariner.wire.messages import InitRes, RegisterReq, StatusMsg
from tests.mariner.wire.message_generator import MESSAGE_TYPES, MessageGenerator
from tests.support import json_oracle

N_MESSAGES: Final = int(os.environ.get("DIFFERENTIAL_MESSAGES", "4_000"))
"""Of each seed; ``make torture`` makes more."""
SEEDS: Final = (1, 2, 3, 4)
SAMPLE_PERIOD: Final = 60
"""One message of so many is also shown to the slow validator."""

FAST: Final = jsonschema_rs.Draft202012Validator(contract.schema())
SLOW: Final = jsonschema.Draft202012Validator(contract.schema())


def keeps_bounds(value: Any) -> bool:
    """Whether the payloads of a registration, right by the contract, keep the codec's bounds."""
    if value["msg_type"] != "register_req":
        return True
    payloads = [i["payload"] for i in value["register_events"] if i["payload"]]
    return all(json_oracle.keeps_bounds(i["data"]) for i in payloads if i["payload_type"] == "json")


def decodes(message: bytes) -> bool:
    try:
        decoded = codec.decode(message)
    except ContractError:
        return False
    if not isinstance(decoded, StatusMsg | InitRes):  # of which two states are not told
        assert codec.decode(codec.encode(decoded)) == decoded, message
    return True


def integers(value: Any) -> set[int]:
    """All integers of a message, as they are understood."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return {j for i in inner for j in integers(i)}
    return {value} if type(value) is int else set()


def points_at(value: Any, pointer: str) -> bool:
    """Whether a JSON pointer leads to a place of a value, or to one that is missing there."""
    *path, last = pointer.split("/")
    for key in [i.replace("~1", "/").replace("~0", "~") for i in path[1:]]:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return isinstance(value, dict) or int(last) < len(value)


@pytest.mark.parametrize("seed", SEEDS)
def test_codec_and_contract_never_disagree(seed: int) -> None:
    generator = MessageGenerator(seed)
    accepted: collections.Counter[str] = collections.Counter()
    n_refused = n_no_json = n_out_of_bounds = 0
    for i in range(N_MESSAGES):
        message = generator.message()
        verdict = decodes(message)
        try:
            value = json_oracle.parse(message)
        except ValueError:
            assert not verdict, message
            n_no_json += 1
            continue
        expected = FAST.is_valid(value)
        if expected and not keeps_bounds(value):
            assert not verdict, message
            n_out_of_bounds += 1
            continue
        if verdict != expected or i % SAMPLE_PERIOD == 0:
            assert verdict == SLOW.is_valid(value), message
            assert verdict == expected, message
            if not verdict:
                explained = contract.explain(value)
                assert explained is not None, message
                assert explained[0] == "" or points_at(value, explained[0]), (message, explained)
        if verdict:
            encoded = codec.encode(codec.decode(message))
            assert integers(json_oracle.parse(encoded)) <= integers(value), message
            accepted[value["msg_type"]] += 1
        else:
            n_refused += 1
    # the messages are worth the name of a test
    assert n_refused > N_MESSAGES / 4
    assert n_no_json > N_MESSAGES / 100
    assert n_out_of_bounds > 0
    assert all(accepted[i] > N_MESSAGES / 200 for i in MESSAGE_TYPES), accepted


def test_valid_messages_are_accepted_by_typed_decoding_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the contract accepts does not need the slow path, unless written strangely."""

    def fail(value: Any) -> NoReturn:
        pytest.fail(f"the contract was asked: {value}")

    monkeypatch.setattr(contract, "explain", fail)
    generator = MessageGenerator(5)
    n_events = 0
    for _ in range(5_000):
        decoded = codec.decode(json.dumps(generator.valid()).encode())
        n_events += isinstance(decoded, RegisterReq) and len(decoded.register_events)
    assert n_events > 100


def test_generator_depends_on_its_seed_only() -> None:
    first, second, other = (MessageGenerator(seed) for seed in (1, 1, 2))
    messages = [first.message() for _ in range(100)]
    assert messages == [second.message() for _ in range(100)]
    assert messages != [other.message() for _ in range(100)]
