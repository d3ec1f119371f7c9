"""Reads a configuration and checks it: YAML, TOML or JSON, read by hat-json.

All errors are reported at once, one per line, with the key, the value and what was expected;
tokens are never shown.
"""

import functools
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
import yaml
from hat import json as hat_json
from referencing import Registry, Resource

from eventer_bridge.control.sockets import SOCKET
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.resources import read_schema
from mariner.gateway.config import GatewayConfig
from mariner.gateway.config_messages import describe, without_quotes
from mariner.gateway.config_problems import semantic_problems

_ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")


def load(path: Path) -> GatewayConfig:
    """Read a configuration file.

    Raises:
        ConfigurationError: it cannot be read, or is wrong.
    """
    return parse(_with_moments_as_texts(_decode(path)), str(path))


def control_socket(path: Path) -> Path | None:
    """The socket of the gateway that a file configures, even if it is wrong otherwise.

    Returns:
        ``control`` or, without it, the socket of the store; None: there is neither.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    data = _decode(path)
    match data:
        case {"control": str(socket)}:
            return Path(socket)
        case {"event_core": {"backend": {"path": str(store)}}}:
            return Path(store) / SOCKET
    return None


def _decode(path: Path) -> Any:
    if path.suffix not in _ENDINGS:
        raise ConfigurationError(f"{path}: expected a file ending in {', '.join(_ENDINGS)}")
    try:
        data = hat_json.decode_file(path)
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from e
    except ValueError as e:  # JSON, TOML and UTF-8 errors, which name line and column
        what = "a date is not valid: " if type(e) is ValueError else ""  # YAML says no more
        raise ConfigurationError(f"{path}: {what}{without_quotes(str(e))}") from e
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = without_quotes(e.problem or "")
        raise ConfigurationError(f"{path}: {place}{problem}") from e
    except yaml.YAMLError as e:
        raise ConfigurationError(f"{path}: {without_quotes(str(e))}") from e
    if data is None:
        raise ConfigurationError(f"{path}: empty, expected an object")
    return data


def parse(data: Any, where: str) -> GatewayConfig:
    """Check a decoded configuration.

    Args:
        data: the configuration.
        where: what to call it in errors, usually its file.

    Raises:
        ConfigurationError: it is wrong; one line per error.
    """
    errors = [*_validator().iter_errors(data)]
    problems = [describe(error) for error in errors]
    if isinstance(data, Mapping) and ("event_core" in data) is ("eventer" in data):
        found = "both are there" if "eventer" in data else "missing"
        problems.append(
            f"event_core: {found}, expected either event_core, the embedded event server, or"
            " eventer, the remote one that everything is relayed to"
        )
    if isinstance(data, Mapping):
        wrong = {error.absolute_path[0] for error in errors if error.absolute_path}
        if "schemas" in wrong:
            wrong |= {"clients", "event_core"}  # which refer to them
        problems += semantic_problems({i: data[i] for i in data if i not in wrong})
    if problems:
        raise ConfigurationError("\n".join(f"{where}: {i}" for i in sorted(problems)))
    return msgspec.convert(data, GatewayConfig, dec_hook=_to_path)


def _with_moments_as_texts(data: Any) -> Any:
    """YAML and TOML have moments of their own, which JSON Schema does not know."""
    match data:
        case dict():
            return {key: _with_moments_as_texts(value) for key, value in data.items()}
        case list():
            return [_with_moments_as_texts(value) for value in data]
        case date():  # and datetime
            return data.isoformat()
    return data


def _to_path(kind: type[Any], value: Any) -> Any:
    return kind(value)


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = yaml.load(read_schema("gateway.yaml"), yaml.CSafeLoader)
    # hat-json's repository of its own schemas, which `log` refers to
    logging = hat_json.json_schema_repo["hat-json://logging.yaml"]
    registry: Registry[Any] = Registry().with_resources(
        [
            ("hat-json://logging.yaml", Resource.from_contents(logging)),
            (schema["$id"], Resource.from_contents(schema)),
        ]
    )
    return jsonschema.Draft202012Validator(schema, registry=registry)
