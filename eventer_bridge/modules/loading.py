"""Finds, checks and creates modules from their configuration.

A configuration names a Python module, which has

* ``json_schema``: JSON Schema (draft 2020-12) of its configuration, ``module`` included;
* ``create(conf, engine)``: coroutine function that creates the ``Module``.
"""

import asyncio
import functools
import importlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import jsonschema
from jsonschema.exceptions import SchemaError, ValidationError

from eventer_bridge import limits
from eventer_bridge.errors import ModuleError
from eventer_bridge.modules.base import Module, ModuleEngine
from eventer_bridge.modules.calls import is_cancellation
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

ModuleConf: TypeAlias = Mapping[str, Any]
"""Configuration of a module: ``module``, the name of its Python module, and its own keys."""


class NamedModule(NamedTuple):
    """A module, its name in the configuration, and its subscription."""

    name: str
    module: Module
    subscription: Subscription


class ModuleInfo(NamedTuple):
    """The two names of a Python module; see the module."""

    json_schema: Mapping[str, Any]
    create: Callable[[ModuleConf, ModuleEngine], Awaitable[Module]]


@functools.cache
def find(name: str) -> ModuleInfo:
    """Import a Python module; ``ModuleError``: that fails, or it is not an engine module."""
    try:
        found = importlib.import_module(name)
    except BaseException as e:  # importing runs foreign code
        raise ModuleError(f"cannot import {name!r}: {type(e).__name__}: {e}") from e
    try:
        info = ModuleInfo(found.json_schema, found.create)
    except AttributeError as e:
        raise ModuleError(f"{name!r} is not an engine module: it has no {e.name}") from e
    try:
        jsonschema.Draft202012Validator.check_schema(dict(info.json_schema))
    except SchemaError as e:
        raise ModuleError(f"{name!r} has no valid json_schema: {e.message}") from e
    except (TypeError, ValueError):
        raise ModuleError(f"{name!r} has no valid json_schema: it is not a mapping") from None
    return info


def errors(conf: ModuleConf) -> Iterator[ValidationError]:
    """The errors of a configuration; ``ModuleError``: the Python module cannot be used."""
    validator = jsonschema.Draft202012Validator(dict(find(conf["module"]).json_schema))
    yield from validator.iter_errors(conf)


async def create_module(conf: ModuleConf, engine: ModuleEngine) -> NamedModule:
    """Create a module, or raise ``ModuleError``."""
    name = conf["module"]
    for error in errors(conf):
        raise ModuleError(f"module {name}: {error.json_path}: {error.message}")
    try:
        async with asyncio.timeout(limits.MODULE_TIMEOUT_S):
            module: Any = await find(name).create(conf, engine)
    except BaseException as e:
        if is_cancellation(e):
            raise
        raise _failure(name, e) from e
    if not isinstance(module, Module):
        raise ModuleError(f"module {name} failed: create returned no Module")
    try:
        subscription: Any = module.subscription
    except BaseException as e:
        await module.async_close()
        raise _failure(name, e) from e
    if not isinstance(subscription, Subscription):
        await module.async_close()
        raise ModuleError(f"module {name} failed: its subscription is not a Subscription")
    mlog.info("module created", extra={"module_name": name})
    return NamedModule(name, module, subscription)


def _failure(name: str, error: BaseException) -> ModuleError:
    mlog.error("module could not be created", extra={"module_name": name}, exc_info=error)
    return ModuleError(f"module {name} failed: {type(error).__name__}: {error}")
