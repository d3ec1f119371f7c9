"""Reads a configuration file and checks it: YAML, TOML or JSON, as hat-json does, within bounds.

A file may be wrong in any way, by mistake or by intent: while it is decoded, a running gateway goes
on. Its size, depth, values (with what aliases repeat) and numbers are bounded; no key may be
there twice, because only the last one would count. Errors are reported all at once, one per line,
with the key, the value and what was expected; tokens are never shown. Any thread.
"""

import functools
import itertools
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema
import msgspec
import yaml
from hat import json as hat_json
from referencing import Registry, Resource

from eventer_bridge.control.client import SOCKET
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.resources import read_regular, read_schema
from mariner import limits
from mariner.gateway import config_problems
from mariner.gateway.config import GatewayConfig
from mariner.gateway.config_problems import masked, show

_VALIDATOR: Final = jsonschema.validators.extend(
    # 1.0 is no integer here, as msgspec has it
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft4Validator.TYPE_CHECKER,
)


def load(path: Path) -> GatewayConfig:
    """Read and check a configuration file; raises ConfigurationError."""
    return parse(decode(path), str(path))


def control_socket(path: Path) -> Path | None:
    """The socket of the gateway that a file configures, even if it is wrong otherwise.

    It is ``control`` or, without it, the socket of the store; None: there is neither. Raises
    ConfigurationError if the file cannot be read.
    """
    match decode(path):
        case {"control": str(socket)}:
            return Path(socket)
        case {"event_core": {"backend": {"path": str(store)}}}:
            return Path(store) / SOCKET
    return None


def parse(data: Any, where: str) -> GatewayConfig:
    """Check a decoded configuration; ``where`` is its name in errors, usually its file.

    Raises ConfigurationError with a line per error.
    """
    most = limits.MAX_CONFIGURATION_ERRORS
    errors = [*itertools.islice(_validator().iter_errors(data), most)]
    if len(errors) == most:
        told = sorted(config_problems.describe(error) for error in errors)
        raise ConfigurationError("\n".join(f"{where}: {i}" for i in [*told, "and maybe more"]))
    problems = [config_problems.describe(error) for error in errors]
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
        problems += config_problems.semantic_problems({i: data[i] for i in data if i not in wrong})
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


# --- decoding -----------------------------------------------------------------------------


_YAML_TAG: Final = "tag:yaml.org,2002:"
_YAML_DIRECTIVE: Final = re.compile("^%", re.MULTILINE)
_TOO_DEEP: Final = f"nested more than {limits.MAX_CONFIGURATION_DEPTH} deep"
_TOO_MANY: Final = f"more than {limits.MAX_CONFIGURATION_VALUES} values"
_TOO_LONG: Final = f"a number of more than {limits.MAX_NUMBER_CHARACTERS} digits"
_DUPLICATE: Final = "the key is there twice"


def decode(path: Path) -> Any:
    """Read and decode a configuration file; moments of YAML and TOML become texts.

    Raises ConfigurationError if it is unreadable or exceeds a bound; never tells a token.
    """
    decoder = _DECODERS.get(path.suffix)
    if decoder is None:
        raise ConfigurationError(f"{path}: expected a file ending in {', '.join(_DECODERS)}")
    try:
        data = read_regular(path, limits.MAX_CONFIGURATION_BYTES)
        return _bounded(decoder(data.decode("utf-8-sig")))
    except OSError as e:
        problem = e.strerror
    except _WrongError as e:
        problem = str(e)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = f"{place}{config_problems.without_quotes(e.problem or '')}"
    except RecursionError:
        problem = _TOO_DEEP
    except (ValueError, yaml.YAMLError) as e:  # JSON, TOML and UTF-8 name line and column
        what = "a date or number is not valid: " if type(e) is ValueError else ""
        problem = f"{what}{config_problems.without_quotes(str(e))}"
    raise ConfigurationError(f"{path}: {problem}")


def to_path(kind: type[Any], value: Any) -> Any:
    """A text as a path (``msgspec.convert``'s ``dec_hook``)."""
    path = kind(value)
    if b"\0" in os.fsencode(path):  # which raises ValueError as well
        raise ValueError("expected a path without the character U+0000")
    return path


class _WrongError(Exception):
    """What is wrong, without the file; tells no token."""


def _bounded(data: Any) -> Any:
    """The same as JSON has it; refuses what is too deep or too much."""
    level: list[Any] = [data]
    n_values = 0
    for _ in range(limits.MAX_CONFIGURATION_DEPTH + 1):
        n_values += len(level)
        if n_values > limits.MAX_CONFIGURATION_VALUES:
            raise _WrongError(_TOO_MANY)
        if any(isinstance(i, int) and abs(i) >= 10**limits.MAX_NUMBER_CHARACTERS for i in level):
            raise _WrongError(_TOO_LONG)
        level = [*itertools.chain.from_iterable(_values(i) for i in level)]
        if not level:
            return _as_json(data)
    raise _WrongError(_TOO_DEEP)


def _values(data: Any) -> Iterable[Any]:
    match data:
        case dict():
            return data.values()
        case list():
            return data
    return ()


def _as_json(data: Any) -> Any:
    match data:
        case dict():
            return {key: _as_json(value) for key, value in data.items()}
        case list():
            return [_as_json(value) for value in data]
        case date() | time():  # and datetime
            return data.isoformat()
    return data


# --- JSON and TOML ------------------------------------------------------------------------


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            name = dict(pairs).get("name")
            where = f", in the object with the name {show(name)}" if isinstance(name, str) else ""
            raise _WrongError(f"{masked(key)}: {_DUPLICATE}{where}")
        found[key] = value
    return found


def _decode_toml(text: str) -> Any:
    # the time for a dotted key grows with the square of its parts
    if any(line.count(".") > limits.MAX_TOML_DOTS for line in text.splitlines()):
        raise _WrongError(f"a line with more than {limits.MAX_TOML_DOTS} dots")
    return tomllib.loads(text)


# --- YAML ---------------------------------------------------------------------------------


class _YamlLoader(yaml.CSafeLoader):
    """Refuses too much, or too deep, while nodes are composed: that recurses in C."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._n_nodes = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """Called before each node is composed."""
        self._depth += 1
        self._n_nodes += 1
        if self._depth > limits.MAX_CONFIGURATION_DEPTH + 1:
            raise _error(_TOO_DEEP, current_node)
        if self._n_nodes > 2 * limits.MAX_CONFIGURATION_VALUES:  # with keys
            raise _error(_TOO_MANY, current_node)
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        """Called after each node is composed."""
        self._depth -= 1
        super().ascend_resolver()


def _refuse_tag(loader: Any, node: Any) -> Any:
    raise _error("a tag of what JSON does not have", node)


for _name in ("binary", "omap", "pairs", "set"):
    _YamlLoader.add_constructor(f"{_YAML_TAG}{_name}", _refuse_tag)


def _decode_yaml(text: str) -> Any:
    # the time for directives grows with the square of their number
    if len(_YAML_DIRECTIVE.findall(text)) > limits.MAX_YAML_DIRECTIVES:
        raise _WrongError(f"more than {limits.MAX_YAML_DIRECTIVES} directives")
    loader = _YamlLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise _WrongError("empty, expected an object")
        _measure(node, {})
        return loader.construct_document(node)
    except (KeyError, AttributeError) as e:  # of PyYAML, at `!!bool x` and `!!timestamp x`
        raise _WrongError("a value does not fit its tag") from e
    finally:
        loader.dispose()


class _Extent(NamedTuple):
    """Of a node, with what aliases repeat of others."""

    n_nodes: int
    depth: int


def _measure(node: Any, known: dict[int, _Extent | None]) -> _Extent:
    """Check a node before it is constructed, which would repeat what is merged, and those in it.

    Raises yaml.MarkedYAMLError.
    """
    if id(node) in known:
        if (found := known[id(node)]) is None:
            raise _error("an alias of what it is in", node)
        return found
    known[id(node)] = None
    parts = [_measure(i, known) for i in _children(node)]
    n_nodes = 1 + sum(i.n_nodes for i in parts)
    depth = 1 + max((i.depth for i in parts), default=0)
    if n_nodes > 2 * limits.MAX_CONFIGURATION_VALUES:
        raise _error(_TOO_MANY, node)
    if depth > limits.MAX_CONFIGURATION_DEPTH + 1:
        raise _error(_TOO_DEEP, node)
    found = known[id(node)] = _Extent(n_nodes, depth)
    return found


def _children(node: Any) -> list[Any]:
    match node:
        case yaml.MappingNode():
            _check_keys(node)
            return [i for pair in node.value for i in pair]
        case yaml.SequenceNode():
            return [*node.value]
    if node.tag != f"{_YAML_TAG}str" and len(node.value) > limits.MAX_NUMBER_CHARACTERS:
        raise _error(_TOO_LONG, node)  # 1:1:1:… is one to YAML, which takes for ever
    return []


def _check_keys(mapping: Any) -> None:
    keys: set[str] = set()
    for key, _ in mapping.value:
        kind = key.tag.removeprefix(_YAML_TAG)
        if kind not in {"str", "merge"}:
            shown = kind if kind in {"bool", "float", "int", "null", "timestamp"} else "no text"
            raise _error(f"a key is {shown} to YAML, expected a text, in quotes", key)
        if key.value in keys:
            raise _error(f"{masked(key.value)}: {_DUPLICATE}", key)
        keys.add(key.value)


def _error(problem: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


_DECODERS: Final[Mapping[str, Callable[[str], Any]]] = {
    ".yaml": _decode_yaml,
    ".yml": _decode_yaml,
    ".toml": _decode_toml,
    ".json": functools.partial(json.loads, object_pairs_hook=_object),
}
"""By the endings of names."""
