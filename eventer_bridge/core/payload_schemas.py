"""Payload schemas of clients' rights, and their checks, inline or in a process of their own.

A check ends at the first error, and its text shows no value of the payload: values may be as
large as a message, and are neither collected nor copied.

The time of a check grows with the payload, by a factor of the schema: usually 0.1 to 0.6 us a
byte; for an ``enum`` of many arrays, or nested alternatives, it is unbounded. The library can
neither be interrupted nor release the interpreter to other threads. Therefore only registrations of
up to ``limits.INLINE_SCHEMA_BYTES`` are checked on the event loop's thread, others by a process,
with a time limit (:class:`PayloadSchemas`). A pattern that backtracks too often
(``limits.MAX_PATTERN_BACKTRACKS``) does not match.

The process is this module, run as ``python -m eventer_bridge.core.payload_schemas`` with the time
limit of a check in seconds (:func:`main`).
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias
from urllib.parse import quote

import jsonschema_rs
import msgspec

from eventer_bridge import limits
from eventer_bridge.errors import ConfigurationError, CoreError
from eventer_bridge.model import JsonPayload, Payload

Check: TypeAlias = tuple[Sequence[str], memoryview]
"""Ids of schemas, and the JSON text that must satisfy all of them."""

LENGTH_BYTES: Final = 8
"""Encoding of a message's length, which precedes it."""

_MODULE: Final = "eventer_bridge.core.payload_schemas"

_MASK = "value"
"""Placeholder for a payload's values in texts."""

_EXPECTED = "expected a JSON Schema of draft 2020-12"
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=limits.MAX_PATTERN_BACKTRACKS)


class SchemaCheckError(CoreError):
    """A check failed to run, or took too long; the text is for the client."""


class PayloadSchema:
    """A schema, with an ``$id``, which may refer to those of the registry. Any thread.

    Raises ``ValueError`` (it is no schema) or ``jsonschema_rs.ReferencingError``.
    """

    def __init__(self, schema: Mapping[str, Any], registry: jsonschema_rs.Registry) -> None:
        self.id = str(schema["$id"])
        self._validator = _validator(dict(schema), registry)

    def refusal(self, payload: Payload | None) -> str | None:
        """The reason why a payload does not satisfy the schema; None if it does."""
        if not isinstance(payload, JsonPayload):
            return "a JSON payload is required by its schema"
        try:
            self._validator.validate(payload.value())
        except (msgspec.DecodeError, RecursionError) as e:
            return f"payload: {e}"
        except jsonschema_rs.ValidationError as e:
            return f"payload{_pointer(e)}: {e.message}"
        return None


def _validator(
    schema: dict[str, Any], registry: jsonschema_rs.Registry
) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        schema, registry=registry, mask=_MASK, pattern_options=_PATTERNS
    )


def create(schemas: Iterable[Mapping[str, Any]]) -> dict[str, PayloadSchema]:
    """Schemas by their ``$id``; ``ConfigurationError``: some cannot be used, a line each."""
    made, wrong = _create(schemas)
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    return made


def problems(schemas: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Why :func:`create` would fail: texts that begin with the key, as ``schemas[0]``."""
    return _create(schemas)[1]


def _create(schemas: Iterable[Mapping[str, Any]]) -> tuple[dict[str, PayloadSchema], Sequence[str]]:
    made: dict[str, PayloadSchema] = {}
    wrong: list[str] = []
    several = [dict(schema) for schema in schemas]
    try:
        registry = _registry(several)
    except (ValueError, jsonschema_rs.ReferencingError) as e:
        return made, [_unregistered(several, e)]
    for index, schema in enumerate(several):
        key = _key(index, schema)
        try:
            found = PayloadSchema(schema, registry)
        except jsonschema_rs.ValidationError as e:
            wrong.append(f"{key}: {_EXPECTED}: schema{_pointer(e)}: {e.message}")
        except (ValueError, jsonschema_rs.ReferencingError) as e:
            wrong.append(f"{key}: {_EXPECTED}: {e}")
        else:
            if found.id in made:
                wrong.append(f"{key}: expected an $id that no other schema has")
            made[found.id] = found
    return made, wrong


def unused_problems(schemas: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What is wrong in definitions of schemas without :func:`problems`, which do not use them."""
    several = [dict(schema) for schema in schemas]
    registry = _registry(several)
    for index, schema in enumerate(several):
        for keyword in ("$defs", "definitions"):
            for name in _named(schema.get(keyword)):
                pointer = quote(name.replace("~", "~0").replace("/", "~1"))
                its = {"$ref": f"{schema['$id']}#/{keyword}/{pointer}"}
                try:
                    _validator(its, registry)
                except (ValueError, jsonschema_rs.ReferencingError) as e:
                    why = e.message if isinstance(e, jsonschema_rs.ValidationError) else e
                    yield f"{_key(index, schema)}: schema/{keyword}/{name}: {why}"


def _named(definitions: Any) -> list[str]:
    return [*definitions] if isinstance(definitions, Mapping) else []


def _registry(schemas: Iterable[dict[str, Any]]) -> jsonschema_rs.Registry:
    return jsonschema_rs.Registry([(str(i["$id"]), i) for i in schemas])


def _unregistered(schemas: Sequence[dict[str, Any]], error: Exception) -> str:
    """Says which schema has the unknown reference or wrong ``$id``: the library does not."""
    known = [{"$id": i["$id"]} for i in schemas]
    alone = [(index, [i]) for index, i in enumerate(known)]
    among = [(index, [*known, schema]) for index, schema in enumerate(schemas)]
    for index, several in (*alone, *among):
        try:
            _registry(several)
        except (ValueError, jsonschema_rs.ReferencingError) as e:
            return f"{_key(index, schemas[index])}: {_EXPECTED}: {e}"
    return f"schemas: {error}"


def _key(index: int, schema: Mapping[str, Any]) -> str:
    return f"schemas[{index}]: {str(schema['$id'])!r}"


def _pointer(error: jsonschema_rs.ValidationError) -> str:
    return "".join(f"/{i}" for i in error.instance_path)


class PayloadSchemas:
    """Schemas of a configuration; ``ConfigurationError``: one cannot be used. To be closed.

    Large payloads are checked in a process (:func:`main`), one after the other. A thread waits for
    it. A check that takes longer than ``limits.SCHEMA_CHECK_TIMEOUT_S`` ends it, and its payload is
    refused; the next check starts a new process, as the first one does. It holds no descriptor of
    the gateway except its two pipes, and ends with the gateway, however that ends.

    ``by_id`` are the schemas by their ``$id``. Belongs to the event loop's thread.
    """

    def __init__(self, schemas: Iterable[Mapping[str, Any]] = ()) -> None:
        schemas = [dict(schema) for schema in schemas]
        self.by_id = create(schemas)
        self._schemas = json.dumps(schemas).encode()
        self._thread = ThreadPoolExecutor(1, "schema checks")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    async def first_refused(self, checks: Sequence[Check]) -> tuple[int, str] | None:
        """Index of the first payload that does not satisfy its schemas, and why; None: all do.

        ``SchemaCheckError``: the check failed.
        """
        if self._is_closed:
            raise SchemaCheckError("schemas are not checked: the server is closing")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._first_refused, checks)

    async def async_close(self) -> None:
        """End the process; checks in progress are refused. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        if process := self._process:
            process.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown()

    # --- on its thread ----------------------------------------------------------------------

    def _first_refused(self, checks: Sequence[Check]) -> tuple[int, str] | None:
        request = msgspec.msgpack.encode(checks)
        if self._process is None:
            try:
                self._process = self._start()
                self._exchange(self._schemas, limits.SCHEMA_START_TIMEOUT_S)
            except (OSError, _EndedError) as e:
                self._end()
                is_timeout = isinstance(e, _EndedError) and e.is_timeout
                why = f"not ready after {limits.SCHEMA_START_TIMEOUT_S:g} s" if is_timeout else e
                raise SchemaCheckError(f"the process of schema checks does not start: {why}") from e
        timeout_s = limits.SCHEMA_CHECK_TIMEOUT_S
        try:
            answer = self._exchange(request, timeout_s)
        except _EndedError as e:
            self._end()
            if e.is_timeout:
                text = f"its schema check took longer than {timeout_s:g} s"
            else:
                text = f"its schema check did not end: {e}"
            raise SchemaCheckError(text) from e
        return msgspec.msgpack.decode(answer, type=tuple[int, str] | None)

    def _start(self) -> "subprocess.Popen[bytes]":
        # it imports from the same path as this process, and not from its working directory
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        # without us, a check ends by itself a little later than we would end it
        alone_s = limits.SCHEMA_CHECK_TIMEOUT_S + 1
        return subprocess.Popen(  # noqa: S603 (nothing of a peer is part of it)
            [sys.executable, "-m", _MODULE, str(alone_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
        )

    def _exchange(self, message: bytes, timeout_s: float) -> bytes:
        """Send a message and receive its answer; raises _EndedError."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(timeout_s, expire)
        timer.start()
        try:
            if self._is_closed:
                raise _EndedError("the server is closing")
            process.stdin.write(len(message).to_bytes(LENGTH_BYTES))
            process.stdin.write(message)
            process.stdin.flush()
            n_bytes = int.from_bytes(_read(process.stdout, LENGTH_BYTES))
            return _read(process.stdout, n_bytes)
        except (OSError, EOFError) as e:
            code = process.wait()
            raise _EndedError(_ending(code), is_timeout=expired.is_set()) from e
        finally:
            timer.cancel()
            timer.join()  # once this has returned, it kills no process that has answered

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # part of a message was not written
                pipe.close()


class _EndedError(Exception):
    """The process is gone; the text is the reason."""

    def __init__(self, reason: str, *, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.is_timeout = is_timeout


def _read(pipe: Any, n_bytes: int) -> bytes:
    data: bytes = pipe.read(n_bytes)
    if len(data) < n_bytes:
        raise EOFError
    return data


def _ending(code: int) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"


def main() -> None:
    """Check payloads from the standard input: the process of :class:`PayloadSchemas`.

    A message, in both directions, is a length (8 bytes, big endian) followed by its bytes. The
    first one holds the schemas, in JSON, and is answered by an empty one. Each later one holds
    payloads with the ids of their schemas, in MessagePack; the answer is the first refused one with
    its reason, or nil. It ends with its input, and by itself if a check takes too long and the
    parent, which may be gone, does not end it.
    """
    # the parent may handle signals in a thread of its own, and block them in all others
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    timeout_s = float(sys.argv[1])
    schemas = create(json.loads(_receive(source)))
    _send(sink, b"")
    while request := _receive(source):
        signal.setitimer(signal.ITIMER_REAL, timeout_s)  # SIGALRM ends it, even within a check
        answer = msgspec.msgpack.encode(_first_refused(schemas, request))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(sink, answer)


def _first_refused(schemas: Mapping[str, PayloadSchema], request: bytes) -> tuple[int, str] | None:
    checks = msgspec.msgpack.decode(request, type=list[tuple[list[str], bytes]])
    for index, (schema_ids, data) in enumerate(checks):
        payload = JsonPayload(msgspec.Raw(data))
        for schema_id in schema_ids:
            if reason := schemas[schema_id].refusal(payload):
                return index, reason
    return None


def _receive(source: BinaryIO | Any) -> bytes:
    """The next message; empty at the end of the input, even within a message."""
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return b""
    n_bytes = int.from_bytes(head)
    data: bytes = source.read(n_bytes)
    return data if len(data) == n_bytes else b""


def _send(sink: BinaryIO | Any, message: bytes) -> None:
    sink.write(len(message).to_bytes(LENGTH_BYTES) + message)
    sink.flush()


if __name__ == "__main__":
    main()
