"""The event model (004)."""

import time
from uuid import UUID

import pytest

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.rsb.event import Informer, MetaData, RsbEvent, RsbEventId, Scope, parse_scope
from tests.eventer_bridge.rsb.samples import sample


@pytest.mark.parametrize(
    ("sender", "sequence", "expected"),
    [  # both examples of 004
        ("D8FBFEF4-4EB0-4C89-9716-C425DED3C527", 0, "84F43861-433F-5253-AFBB-A613A5E04D71"),
        ("BF948D47-618F-4B04-AAC5-0AB5A1A79267", 378, "BD27BE7D-87DE-5336-BECA-44FC60DE46A0"),
    ],
)
def test_the_id_is_derived_from_sender_and_sequence(
    sender: str, sequence: int, expected: str
) -> None:
    assert RsbEvent(RsbEventId(UUID(sender), sequence), Scope(())).id == UUID(expected)
    assert sample(sequence, sender=UUID(sender)).id == UUID(expected)


@pytest.mark.parametrize("text", ["/", "/a/", "/a/b/", "/_-9Z/__rsb/"])
def test_scopes(text: str) -> None:
    assert str(parse_scope(text)) == text


@pytest.mark.parametrize("text", ["", "a", "a/", "/a", "//", "/a//b/", "/ä/", "/a b/", "/a/\n"])
def test_what_is_no_scope(text: str) -> None:
    with pytest.raises(InvalidEventError, match="expected '/', or '/a/b/' of letters"):
        parse_scope(text)


def test_a_scope_is_bounded() -> None:
    longest = "/" + "a" * (limits.MAX_TYPE_BYTES - 2) + "/"
    assert str(parse_scope(longest)) == longest
    with pytest.raises(InvalidEventError, match="1025 characters, at most 1024"):
        parse_scope("/a" + longest[1:])


def test_a_scope_includes_what_is_below_it() -> None:
    scope = parse_scope("/a/b/c/")
    above = [parse_scope(i) for i in ("/", "/a/", "/a/b/")]
    assert all(i.includes(scope) and not scope.includes(i) for i in above)
    assert scope.includes(scope)
    assert not parse_scope("/a/bb/").includes(scope)


def test_an_informer_counts_and_wraps() -> None:
    informer = Informer(parse_scope("/a/"), sequence=2**32 - 2)
    ids = [informer.create(informer.scope).event_id for _ in range(4)]
    assert [i.sequence for i in ids] == [2**32 - 2, 2**32 - 1, 0, 1]
    assert {i.sender for i in ids} == {informer.sender}
    assert len({RsbEvent(i, Scope(())).id for i in ids}) == 4
    assert Informer(informer.scope).sender != informer.sender


def test_times_are_stamped_when_004_says() -> None:
    begin_us = time.time_ns() // 1000
    event = Informer(parse_scope("/a/")).create(parse_scope("/a/"))
    assert event.meta.send_time is None
    sent = event.sent()
    assert sent.meta.receive_time is None
    delivered = sent.delivered(received_us=time.time_ns() // 1000)
    meta = delivered.meta
    end_us = time.time_ns() // 1000
    times = (meta.create_time, meta.send_time, meta.receive_time, meta.deliver_time)
    known = [i for i in times if i is not None]
    assert len(known) == 4
    assert [begin_us, *known, end_us] == sorted([begin_us, *known, end_us])
    # sent on by somebody else: its sender's times stay, those of who received it go
    again = delivered.sent()
    assert again == sent


def test_a_create_time_that_is_given_stays() -> None:
    informer = Informer(parse_scope("/a/"))
    meta = MetaData(1, 2, 3, 4, {"a": 5}, {"b": "c"})
    assert informer.create(informer.scope, meta=meta).meta == MetaData(
        1, user_times={"a": 5}, user_infos={"b": "c"}
    )
