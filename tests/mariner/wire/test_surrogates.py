"""Lone surrogates are found exactly where Python's JSON parser leaves them."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mariner.wire import lenient

PARTS = (r"\ud83d", r"\uDE00", r"\uDBFF", r"\udfff", r"\u0041", r"\\", r"\"", r"\n", "ud83d", "é")


@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_a_text_is_mended_if_it_cannot_be_encoded(text: str) -> None:
    data = f'"{text}"'.encode()
    found = lenient.mend(data)
    try:
        json.loads(data).encode()
    except UnicodeEncodeError:
        assert found is not None
        mended, position = found
        json.loads(mended).encode()
        assert len(mended) == len(data)
        assert data[position : position + 3].lower() == rb"\ud"
    else:
        assert found is None
