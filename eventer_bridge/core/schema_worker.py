"""Costly checks of payloads against schemas, in a process of their own.

What a check costs depends on the schema and on the payload, and the library that does it can
neither be interrupted nor leave the interpreter to other threads meanwhile. A process can be
ended: a check that takes longer than ``limits.SCHEMA_CHECK_TIMEOUT_S`` is refused, and the next
one gets a new process (``schema_process``). It is started by the first check, holds no descriptor
of the gateway's except its two pipes, and ends with the gateway, however that ends.

Checks are made one after the other. A thread waits for the process.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from eventer_bridge import limits
from eventer_bridge.errors import CoreError

Check: TypeAlias = tuple[Sequence[str], memoryview]
"""Ids of schemas, and the JSON text that is to satisfy all of them."""

LENGTH_BYTES: Final = 8
"""Of a message's length, which comes before it."""

_MODULE: Final = "eventer_bridge.core.schema_process"


class SchemaCheckError(CoreError):
    """A check was not made, or took too long; the text is for the client."""


class SchemaWorker:
    """See the module. To be closed, once anything was checked.

    Args:
        schemas: JSON Schemas that can be used.
    """

    def __init__(self, schemas: Iterable[Mapping[str, Any]]) -> None:
        self._schemas = json.dumps([dict(schema) for schema in schemas]).encode()
        self._thread = ThreadPoolExecutor(1, "schema checks")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    async def first_refused(self, checks: Sequence[Check]) -> tuple[int, str] | None:
        """The first payload that does not satisfy its schemas.

        Returns:
            Its index in ``checks`` and why; None if there is none.

        Raises:
            SchemaCheckError: nobody knows.
        """
        if self._is_closed:
            raise SchemaCheckError("schemas are not checked: the server is closing")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._first_refused, checks)

    async def async_close(self) -> None:
        """End the process; checks under way are refused. Once is enough."""
        if self._is_closed:
            return
        self._is_closed = True
        if process := self._process:
            process.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown()

    # --- what its thread does ---------------------------------------------------------------

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
        # what can be imported here can be there, and nothing else: not from where it is started
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        # a check that goes on without us ends by itself a little later than we would end it
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
            timer.join()  # it kills no process that has answered, once this has returned

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # part of a message was not sent
                pipe.close()


class _EndedError(Exception):
    """The process is gone; with why."""

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
