"""Documents say what the code does; tests/test_client_wheel.py runs their programs."""

import re
from pathlib import Path

import yaml

from eventer_bridge import limits
from eventer_bridge.resources import read_schema
from mariner import limits as mariner_limits

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()


def examples(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_bounds_are_those_of_the_code() -> None:
    promise = f"cannot be resolved for {mariner_limits.UNKNOWN_HOST_S:.0f} s"
    assert promise in " ".join(PYTHON.split())


def test_defaults_of_the_schema_are_those_of_the_code() -> None:
    schema = yaml.safe_load(read_schema("gateway.yaml"))
    core = schema["properties"]["event_core"]["properties"]
    defaults = {
        limits.MAX_CLIENT_EVENT_TYPES: (
            schema["$defs"]["quota"]["properties"]["max_event_types"],
            core["rsb"]["properties"]["max_event_types"],
        ),
        limits.MAX_CLIENT_SUBSCRIPTIONS: (
            schema["$defs"]["quota"]["properties"]["max_subscriptions"],
        ),
        limits.REQUEST_KEYS: (schema["$defs"]["request_keys"]["properties"]["max_entries"],),
        limits.REQUEST_KEYS_S: (schema["$defs"]["request_keys"]["properties"]["duration"],),
    }
    for default, described in defaults.items():
        assert [i["default"] for i in described] == [default] * len(described)


def test_the_readme_has_the_first() -> None:
    assert examples(README) == examples(PYTHON)[:1]
