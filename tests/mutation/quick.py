"""A pytest plugin: the tests of a mutant, so that thousands of mutants are tried in an hour.

The quickest test goes first, since most mutants fail any test that calls them. Hypothesis takes
the same few examples each time, and does not look for a smaller one that fails too.
"""

import gc
import json
import os
import resource
import threading
import time
from pathlib import Path
from typing import Final

import hypothesis
import pytest

MAX_EXAMPLES: Final = 25

MAX_TEST_CPU_S: Final = 5
"""What takes longer goes on without end: these tests take a second at most."""

MAX_IDLE_S: Final = 3.0
"""What waits longer waits for ever."""

CHECK_PERIOD_S: Final = 0.1

WITHOUT_END: Final = 36
"""mutmut's exit code of what it ends itself."""

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
    if _is_mutated():
        _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        end_s = int(time.process_time()) + MAX_TEST_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (min(end_s, hard), hard))


@pytest.hookimpl
def pytest_runtestloop() -> None:
    """End the process at a mutant that makes a test wait for ever."""
    if _is_mutated():
        threading.Thread(target=_end_if_idle, daemon=True).start()


def _end_if_idle() -> None:
    """On a busy machine it is not idle, but slow, and so is this thread."""
    n_idle = 0
    while n_idle * CHECK_PERIOD_S < MAX_IDLE_S:
        begin_s = time.process_time()
        time.sleep(CHECK_PERIOD_S)
        n_idle = n_idle + 1 if time.process_time() - begin_s < CHECK_PERIOD_S / 100 else 0
    os._exit(WITHOUT_END)


def _is_mutated() -> bool:
    return "__mutmut_" in os.environ.get("MUTANT_UNDER_TEST", "")
