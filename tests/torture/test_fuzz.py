"""Fuzzing in small; what is fuzzed also without looking at what it reaches."""

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture import fuzz
from tests.torture.fuzz_targets import TARGETS, Target, inputs
from tests.torture.ledger import ViolationError
from tests.torture.report import no_progress

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: `make torture` does that, where there are wheels of it",
)


def breaks(data: bytes) -> None:
    assert len(data) < 2


def hangs(data: bytes) -> None:
    while len(data) >= 2:
        pass


def grows(data: bytes) -> None:
    kept: list[bytes] = []
    while len(data) >= 2:
        if len(kept) < 600:
            kept.append(b"x" * 1_000_000)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_seeds_and_what_is_like_them(target: Target) -> None:
    assert len(list(target.seeds())) > 3
    for data in inputs(target, 2_000, random.Random(7)):
        target.run(data)


@needs_atheris
async def test_in_small(tmp_path: Path) -> None:
    outcome = await fuzz.run(tmp_path, 1, random.Random(1), no_progress)
    assert outcome.startswith("stream ")
    assert outcome.count(" inputs, ") == len(TARGETS)


@needs_atheris
@pytest.mark.parametrize(
    ("target", "max_seconds", "said"),
    [
        (breaks, 30, "AssertionError"),
        (hangs, 5, "Timeout: .*in hangs"),
        (grows, 30, "out-of-memory"),
    ],
)
async def test_an_input_that_must_not_be_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: Callable[[bytes], None],
    max_seconds: int,
    said: str,
) -> None:
    monkeypatch.setattr(fuzz, "MAX_SECONDS_PER_INPUT", max_seconds)
    if target is grows:
        monkeypatch.setattr(fuzz, "MAX_MEMORY_MB", 500)
    with pytest.raises(ViolationError, match=rf"(?s)test_fuzz:{target.__name__}: .*{said}.*Base64"):
        await fuzz.fuzz(target, tmp_path, seconds=30, seed=1)
