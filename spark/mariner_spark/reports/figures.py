"""Figures of reports: numbers to set conditions on, and to compare with the span before.

A figure is one of a report's totals, and named ``REPORT.FIGURE``, as ``gaps.longest_s``.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from typing_extensions import override

from mariner_spark.errors import OptionError, quoted
from mariner_spark.reports import formats

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}
_CONDITION: Final = re.compile(
    r"\s*([a-z]+)\.([a-z0-9_]+)\s*(<=|>=|<|>|=)\s*([-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*"
)


class Condition(NamedTuple):
    """A condition on a figure: ``gaps.longest_s > 3600``; there may be nothing to measure."""

    report: str
    figure: str
    relation: str
    number: float

    @override
    def __str__(self) -> str:
        return f"{self.report}.{self.figure} {self.relation} {formats.plain(self.number)}"

    def holds(self, totals: Mapping[str, Any]) -> bool:
        """Whether it holds for the totals of its report."""
        value = totals[self.figure]
        return value is not None and _OPERATORS[self.relation](value, self.number)


def parse(text: str, known: Mapping[str, Sequence[str]]) -> Condition:
    """A condition; ``known``: the figures of each report that is made.

    Raises OptionError: it is none, or names what there is not.
    """
    match = _CONDITION.fullmatch(text)
    if match is None or not math.isfinite(float(match[4])):
        raise OptionError(
            "fail_if", f"{quoted(text)}: expected REPORT.FIGURE > NUMBER, or <, <=, >=, ="
        )
    report, figure, relation, number = match.groups()
    if report not in known:
        raise OptionError("fail_if", f"{text!r}: no report {report}, made are {', '.join(known)}")
    if figure not in known[report]:
        its = ", ".join(known[report])
        raise OptionError("fail_if", f"{text!r}: report {report} has no {figure}, but {its}")
    return Condition(report, figure, relation, float(number))
