"""A client in Node.js, written against the document alone, runs the vectors and does its work."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.protocol import dialogues
from tests.protocol.stage import Stage
from tests.support.waiting import within

NODE: Final = shutil.which("node")
PROGRAM: Final = Path(__file__).parent / "program.mjs"

pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node.js (Debian: nodejs)")


def load(name: str) -> Any:
    return json.loads((dialogues.VECTORS / name).read_text(encoding="utf-8"))


def expected() -> list[str]:
    framing = load("framing.json")
    staged = sum(any(step.stage for step in i.steps) for i in dialogues.load())
    n_whole = len(dialogues.load()) - staged
    return [
        f"framing: {len(framing['encode'])} encoded, {len(framing['decode'])} decoded,"
        f" {len(framing['refuse'])} refused",
        f"messages: {len(load('messages.json'))}",
        f"refusals: {len(load('refusals.json'))}",
        f"dialogues: {n_whole} whole, {staged} up to what happens to the gateway",
        "application: 5 events in 3 pages, 64 in flight",
    ]


async def test_a_client_in_another_language(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NODE is not None
    async with Stage(monkeypatch) as stage:
        process = await asyncio.create_subprocess_exec(
            NODE,
            str(PROGRAM),
            str(stage.port),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with within("the end of the program"):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert output.decode().splitlines() == expected()
    assert process.returncode == 0
