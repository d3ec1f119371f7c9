"""Reads a configuration and checks it.

All errors are reported at once, one per line, with the key, the value and what was expected;
tokens are never shown.
"""

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
import yaml
from hat import json as hat_json
from referencing import Registry, Resource

from eventer_bridge.control.client import SOCKET
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.resources import read_schema
from mariner import limits
from mariner.gateway.config import GatewayConfig
from mariner.gateway.config_decoding import decode, to_path
from mariner.gateway.config_messages import describe
from mariner.gateway.config_problems import semantic_problems

_VALIDATOR: Final = jsonschema.validators.extend(
    # 1.0 is no integer here, as msgspec has it
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft4Validator.TYPE_CHECKER,
)


def load(path: Path) -> GatewayConfig:
    """Read a configuration file.

    Raises:
        ConfigurationError: it cannot be read, or is wrong.
    """
    return parse(decode(path), str(path))


def control_socket(path: Path) -> Path | None:
    """The socket of the gateway that a file configures, even if it is wrong otherwise.

    Returns:
        ``control`` or, without it, the socket of the store; None: there is neither.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    match decode(path):
        case {"control": str(socket)}:
            return Path(socket)
        case {"event_core": {"backend": {"path": str(store)}}}:
            return Path(store) / SOCKET
    return None


def parse(data: Any, where: str) -> GatewayConfig:
    """Check a decoded configuration.

    Args:
        data: the configuration.
        where: what to call it in errors, usually its file.

    Raises:
        ConfigurationError: it is wrong; one line per error.
    """
    most = limits.MAX_CONFIGURATION_ERRORS
    errors = [*itertools.islice(_validator().iter_errors(data), most)]
    if len(errors) == most:
        told = sorted(describe(error) for error in errors)
        raise ConfigurationError("\n".join(f"{where}: {i}" for i in [*told, "and maybe more"]))
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
    try:
        return msgspec.convert(data, GatewayConfig, dec_hook=to_path)
    except msgspec.ValidationError as e:
        raise ConfigurationError(f"{where}: {e}") from e


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
    validator: jsonschema.Draft202012Validator = _VALIDATOR(schema, registry=registry)
    return validator
