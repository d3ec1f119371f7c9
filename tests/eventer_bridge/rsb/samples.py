"""Events for tests: some, and generated ones."""

import struct
from typing import Final
from uuid import UUID

from hypothesis import strategies as st

from eventer_bridge.model import INT64_MAX, INT64_MIN
from eventer_bridge.rsb.event import MetaData, RsbEvent, RsbEventId, Scope, parse_scope
from eventer_bridge.rsb.payloads import CONVERTERS

SENDER: Final = UUID("D8FBFEF4-4EB0-4C89-9716-C425DED3C527")
OTHER: Final = UUID("BF948D47-618F-4B04-AAC5-0AB5A1A79267")


def sample(
    sequence: int = 0,
    schema: str = "utf-8-string",
    data: bytes = b"hello",
    scope: str = "/robot/arm/",
    sender: UUID = SENDER,
) -> RsbEvent:
    """An event with everything."""
    meta = MetaData(
        create_time=1_700_000_000_123_456,
        send_time=1_700_000_000_123_999,
        user_times={"seen": 5, "before 1970": -1},
        user_infos={"unit": "C", "ort": "Küche"},
    )
    causes = (RsbEventId(OTHER, 378), RsbEventId(SENDER, 0))
    event_id = RsbEventId(sender, sequence)
    return RsbEvent(event_id, parse_scope(scope), schema, data, "REQUEST", causes, meta)


# text of the wire: any bytes, also those that are not UTF-8
_texts = st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape"))
_int64 = st.integers(INT64_MIN, INT64_MAX)
_times = st.none() | _int64
_segments = st.text("abcXYZ019-_", min_size=1, max_size=6)
scopes = st.lists(_segments, max_size=5).map(lambda segments: Scope(tuple(segments)))
event_ids = st.builds(RsbEventId, st.uuids(), st.integers(0, 2**32 - 1))
_metas = st.builds(
    MetaData,
    *(_times, _times, _times, _times),
    st.dictionaries(_texts, _int64, max_size=3),
    st.dictionaries(_texts, _texts, max_size=3),
)
_well_formed = st.one_of(
    st.just(("void", b"")),
    st.floats().map(lambda value: ("double", struct.pack("<d", value))),
    _int64.map(lambda value: ("int64", struct.pack("<q", value))),
    st.booleans().map(lambda value: ("bool", bytes([value]))),
    st.binary(max_size=40).map(lambda data: ("bytes", data)),
    st.text(max_size=20).map(lambda text: ("utf-8-string", text.encode())),
)
_any_data = st.tuples(st.sampled_from([*CONVERTERS, ".rst.Image"]) | _texts, st.binary(max_size=40))


@st.composite
def events(draw: st.DrawFn) -> RsbEvent:
    schema, data = draw(_well_formed | _any_data)
    return RsbEvent(
        draw(event_ids),
        draw(scopes),
        schema,
        data,
        draw(st.none() | _texts),
        tuple(draw(st.lists(event_ids, max_size=3))),
        draw(_metas),
    )
