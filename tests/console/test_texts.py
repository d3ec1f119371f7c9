"""Text of what events contain: bounded, and without what is not seen."""

import pytest

from eventer_bridge.model import BinaryPayload, JsonPayload, Timestamp
from mariner_console import limits, texts
from tests.console import hostile


@pytest.mark.parametrize("text", hostile.TEXTS)
def test_what_cannot_be_printed_is_escaped(text: str) -> None:
    for shown in (
        texts.of_type((text, "a")),
        texts.of_payload(JsonPayload.of({text: text})),
        texts.of_payload(BinaryPayload(text, b"\x00")),
    ):
        assert shown.isprintable()
        assert len(shown) <= 12 * limits.MAX_EXCERPT_CHARACTERS
    unfolded = texts.unfolded(JsonPayload.of({text: [text]}))
    assert unfolded.replace("\n", "").isprintable()
    assert len(texts.numbers(JsonPayload.of({text: 1}))) == 1


def test_json_is_indented() -> None:
    assert texts.unfolded(JsonPayload.of({"a": [1]})) == '{\n  "a": [\n    1\n  ]\n}'
    assert texts.unfolded(None) == "(no payload)"
    assert texts.unfolded(BinaryPayload("raw", b"ab")) == "2 bytes of 'raw': 61 62"


def test_large_payloads_are_cut() -> None:
    large = JsonPayload.of(["x" * 10] * 1_000_000)
    assert len(texts.of_payload(large)) <= limits.MAX_EXCERPT_CHARACTERS
    unfolded = texts.unfolded(large)
    assert len(unfolded) < 2 * limits.MAX_UNFOLDED_BYTES
    assert unfolded.endswith(" bytes more")
    assert texts.numbers(large) == {}
    nested = JsonPayload.of({"a": [[[[]]]] * 1_000})
    assert len(texts.unfolded(nested)) < 5 * limits.MAX_UNFOLDED_BYTES


def test_numbers_by_their_paths() -> None:
    payload = JsonPayload.of({"a": {"b": [1, "2", 3.5]}, "c": True, "d": None, "e": -4})
    assert texts.numbers(payload) == {"a.b[0]": 1, "a.b[2]": 3.5, "e": -4}
    assert texts.numbers(JsonPayload.of(7)) == {"": 7}
    assert texts.numbers(BinaryPayload("a", b"1")) == {}
    assert len(texts.numbers(JsonPayload.of({str(i): i for i in range(999)}))) == 21


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "B", "\N{EN DASH}"),
        (0, "", "0"),
        (0.1234, "", "0.123"),
        (1234, "", "1,234"),
        (44_386, "", "44.4 k"),
        (81_719_181_312, "B", "81.7 GB"),
        (-2e6, "", "-2 M"),
    ],
)
def test_numbers_are_short(value: float | None, unit: str, text: str) -> None:
    assert texts.of_number(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 s"),
        (0.0000264, "26.4 µs"),
        (0.478e-3, "478 µs"),
        (0.0125, "12.5 ms"),
        (61, "61 s"),
        (1_800, "30 min"),
        (86_400, "24 h"),
        (864_000, "10 days"),
    ],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert texts.of_seconds(seconds) == text


def test_moments() -> None:
    assert texts.of_moment(Timestamp(0, 1_000)) == "1970-01-01 00:00:00.001"
    assert texts.of_moment(Timestamp(1 << 60, 0)) == "1152921504606846976.000000"
