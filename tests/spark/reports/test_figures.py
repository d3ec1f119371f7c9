"""Conditions on figures of reports."""

import pytest

from mariner_spark.errors import OptionError
from mariner_spark.reports.figures import Condition, parse

KNOWN = {"gaps": ("gaps", "longest_s"), "values": ("numbers",)}


def test_conditions_are_read() -> None:
    assert parse("gaps.longest_s > 3600", KNOWN) == Condition("gaps", "longest_s", ">", 3600.0)
    assert parse(" values.numbers<=-1.5e3", KNOWN) == Condition("values", "numbers", "<=", -1500.0)
    assert str(parse("gaps.longest_s>=0.5", KNOWN)) == "gaps.longest_s >= 0.5"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gaps > 1", "expected REPORT.FIGURE > NUMBER, or <, <=, >=, ="),
        ("gaps.longest_s > 1e999", "expected REPORT.FIGURE > NUMBER, or <, <=, >=, ="),
        ("gaps.longest_s > 1 h", "expected REPORT.FIGURE > NUMBER, or <, <=, >=, ="),
        ("top.types > 1", "no report top, made are gaps, values"),
        ("gaps.sum > 1", "report gaps has no sum, but gaps, longest_s"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(text, KNOWN)
    assert str(error.value) == f"fail_if: {text!r}: {reason}"


@pytest.mark.parametrize(
    ("relation", "expected"),
    [("<", (True, False, False)), ("<=", (True, True, False)), ("=", (False, True, False)),
     (">=", (False, True, True)), (">", (False, False, True))],
)  # fmt: skip
def test_a_condition_holds_or_not(relation: str, expected: tuple[bool, ...]) -> None:
    condition = Condition("gaps", "longest_s", relation, 2.0)
    assert tuple(condition.holds({"longest_s": i}) for i in (1, 2, 3.0)) == expected
    assert not condition.holds({"longest_s": None})
