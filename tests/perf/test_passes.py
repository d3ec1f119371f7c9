"""How far it is through our code: a request passes few functions in few files."""

from pathlib import Path

import pytest

from tests.perf import passes

pytestmark = pytest.mark.perf

BOUNDS = {"register": (70, 20), "query": (76, 18)}
"""Functions and files that a request passes, at most."""


@pytest.mark.parametrize("request_name", passes.REQUESTS)
async def test_a_request_passes_few_functions(request_name: str, tmp_path: Path) -> None:
    passed = await passes.passed(request_name, tmp_path)
    most_functions, most_files = BOUNDS[request_name]
    assert any("/net/stream.py:" in i for i in passed.calls)  # it was looked at all
    assert passed.n_functions <= most_functions, sorted(passed.calls)
    assert passed.n_files <= most_files, sorted(passed.calls)


async def test_what_happens_now_and_then_does_not_count(tmp_path: Path) -> None:
    passed = await passes.passed("query", tmp_path)
    assert not [i for i in passed.calls if "<" in i.rpartition(".")[2] or "sweep" in i]
