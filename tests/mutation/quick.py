"""A pytest plugin: the tests of a mutant, so that thousands of mutants are tried in an hour.

The quickest test goes first, since most mutants fail any test that calls them. Hypothesis takes
the same few examples each time, and does not look for a smaller one that fails too.
"""

import gc
import json
import os
import resource
import time
from pathlib import Path
from typing import Final

import hypothesis
import pytest

MAX_EXAMPLES: Final = 25

MAX_TEST_CPU_S: Final = 5
"""What takes longer goes on without end: these tests take a second at most."""

STATISTICS: Final = Path("mutmut-stats.json")
"""mutmut's, in the folder where it runs the tests: what they took without a mutant."""


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Replace the profile of `tests/conftest.py`, before tests are imported."""
    hypothesis.settings.register_profile(
        "mutation",
        max_examples=MAX_EXAMPLES,
        derandomize=True,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("mutation")
    gc.freeze()  # pytest collects garbage when it ends: not among what all mutants share


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quickest first."""
    if STATISTICS.exists():
        durations: dict[str, float] = json.loads(STATISTICS.read_text())["duration_by_test"]
        items.sort(key=lambda item: durations.get(item.nodeid, 0.0))


@pytest.hookimpl
def pytest_runtest_setup() -> None:
    """End the process at a mutant that makes this test go on without end."""
    if "__mutmut_" not in os.environ.get("MUTANT_UNDER_TEST", ""):
        return
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MAX_TEST_CPU_S, hard))
