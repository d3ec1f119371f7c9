"""Costly checks of payloads against schemas, in a process of their own.

The cost of a check depends on the schema and the payload, and the library can neither be
interrupted nor release the interpreter to other threads. A process can be ended: a check that
takes longer than ``limits.SCHEMA_CHECK_TIMEOUT_S`` is refused, and the next one gets a new process
(``schema_process``). The first check starts it; it holds no descriptor of the gateway except its
two pipes, and ends with the gateway, however that ends.

Checks run one after the other. A thread waits for the process.
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
"""Ids of schemas, and the JSON text that must satisfy all of them."""

LENGTH_BYTES: Final = 8
"""Encoding of a message's length, which precedes it."""

_MODULE: Final = "eventer_bridge.core.schema_process"


class SchemaCheckError(CoreError):
    """A check failed to run, or took too long; the text is for the client."""


class SchemaWorker:
    """See the module. To be closed after use.

    Args:
        schemas: the JSON Schemas.
    """

    def __init__(self, schemas: Iterable[Mapping[str, Any]]) -> None:
        self._schemas = json.dumps([dict(schema) for schema in schemas]).encode()
        self._thread = ThreadPoolExecutor(1, "schema checks")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    async def first_refused(self, checks: Sequence[Check]) -> tuple[int, str] | None:
        """The first payload that does not satisfy its schemas.

        Returns:
            Its index in ``checks`` and the reason; None if there is none.

        Raises:
            SchemaCheckError: the check failed.
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
