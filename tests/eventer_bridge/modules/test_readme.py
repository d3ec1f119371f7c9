"""The example of the README of the modules is one that runs."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import eventer_bridge.modules
from eventer_bridge.errors import ModuleError
from eventer_bridge.model import JsonPayload
from mariner.gateway import config_file
from tests.eventer_bridge.modules.scripted import (
    register,
    register_event,
    running_engine,
    stored,
    types,
)

README = (Path(eventer_bridge.modules.__file__).parent / "README.md").read_text()


def block(language: str, number: int = 0) -> str:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return blocks[number]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("fahrenheit")
    exec(compile(block("python"), "README.md", "exec"), vars(module))  # noqa: S102  # ours
    monkeypatch.setitem(sys.modules, "fahrenheit", module)
    return module


async def test_the_example_runs(example: ModuleType) -> None:
    async with running_engine({"module": "fahrenheit"}) as core:
        events = await register(
            core,
            register_event("room", "celsius", value=100),
            register_event("room", "celsius", value="hot"),
            register_event("room", "other", value=1),
        )
        assert types(events)[3:] == ["room/fahrenheit"]
        assert events[3].payload == JsonPayload.of(212.0)
        assert await stored(core) == events
    async with running_engine({"module": "fahrenheit", "name": "f"}) as core:
        events = await register(core, register_event("a", "b", "celsius", value=0))
        assert types(events) == ["a/b/celsius", "a/b/f"]
    with pytest.raises(ModuleError, match=r"^module fahrenheit: \$\.name: 1 is not of type"):
        async with running_engine({"module": "fahrenheit", "name": 1}):
            pass


def test_the_configuration_is_one(example: ModuleType) -> None:
    conf = {
        "name": "gateway",
        "mariner": {"host": "127.0.0.1", "port": 0},
        "clients": [],
        **yaml.safe_load(block("yaml")),
    }
    core = config_file.parse(conf, "README.md").event_core
    assert core is not None
    assert [i["module"].rpartition(".")[2] for i in core.modules] == [
        "threshold",
        "rate",
        "audit",
        "fahrenheit",
    ]
