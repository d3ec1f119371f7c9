"""Finding and creating modules: every error says which module and what is wrong."""

import sys
from types import ModuleType
from typing import Any

import pytest

from eventer_bridge.errors import ModuleError
from eventer_bridge.modules import loading
from tests.eventer_bridge.modules.scripted import NAME, Scripted, running, running_engine

PACKAGE = "tests.eventer_bridge.modules"


async def nothing(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "'{name}' is not an engine module: it has no json_schema"),
        ({"json_schema": {}}, "'{name}' is not an engine module: it has no create"),
        (
            {"json_schema": {"type": 1}, "create": nothing},
            "'{name}' has no valid json_schema: 1 is not valid under any of the given schemas",
        ),
        (
            {"json_schema": 1, "create": nothing},
            "'{name}' has no valid json_schema: it is not a mapping",
        ),
    ],
)
def test_what_is_no_module(
    contents: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "made_by_a_test"
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ModuleError) as raised:
        loading.find(name)
    assert str(raised.value) == message.format(name=name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{PACKAGE}.broken", "ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_imported(name: str, reason: str) -> None:
    with pytest.raises(ModuleError) as raised:
        loading.find(name)
    assert str(raised.value) == f"cannot import {name!r}: {reason}"


async def test_a_wrong_configuration() -> None:
    conf = {"module": "eventer_bridge.modules.rate", "subscriptions": [["*"]], "window_s": 0}
    with pytest.raises(ModuleError, match=r"^module eventer_bridge\.modules\.rate: \$\.window_s: "):
        async with running_engine(conf):
            pass


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda _: None, "create returned no Module"),
        (lambda i: WrongSubscription(i, value=[("*",)]), "its subscription is not a Subscription"),
        (lambda i: WrongSubscription(i, value=None), "ZeroDivisionError: division by zero"),
    ],
)
async def test_what_is_created_is_looked_at(made: Any, message: str) -> None:
    with pytest.raises(ModuleError) as raised:
        async with running_engine({"module": NAME, "make": made}):
            pass
    assert str(raised.value) == f"module {NAME} failed: {message}"


class WrongSubscription(Scripted):
    def __init__(self, module_engine: Any, value: Any) -> None:
        super().__init__(module_engine)
        self._value = value

    @property
    def subscription(self) -> Any:
        return self._value or 1 / 0


async def test_no_modules() -> None:
    async with running() as (_, modules):
        assert modules == []
