"""Traces by OpenTelemetry: a span for a sampled part of registrations and queries.

* ``register``: from when the events of a session exist until they are durable, or failed; for
  sessions of clients, modules and the gateway itself, not for those of other servers;
* ``query``: from a query's turn to its answer.

Spans have types and counts, never payloads. They are sent in batches by a thread of their own;
when they cannot be, they are dropped. Needs the extra ``otel``; nothing of it is imported, and
nobody observes sessions, unless ``traces`` is configured. Belongs to the event loop's thread.
"""

import asyncio
import contextlib
import functools
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from eventer_bridge.core.base import Observer
from eventer_bridge.core.session import REMOTE_SOURCE
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import QueryParams, quoted_type
from eventer_bridge.packed import Batch
from eventer_bridge.resources import in_time
from mariner import limits
from mariner.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_NS: Final = 1_000_000_000


class TracesConfig(msgspec.Struct, frozen=True):
    """Where spans go (OTLP over HTTP), and of which part of registrations and queries."""

    endpoint: str
    sample_ratio: float = 0.01


def query_name(kind: type[QueryParams]) -> str:
    """Which of the three queries it is: ``latest``, ``timeseries`` or ``server``."""
    return kind.__name__.removeprefix("Query").removesuffix("Params").lower()


def load_library() -> tuple[Any, Any, Any, Any, Any]:
    """Import OpenTelemetry: ``trace_exporter``, ``resources``, ``trace``, ``export``, its status.

    Raises ConfigurationError if the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415
        from opentelemetry.sdk import resources, trace  # noqa: PLC0415
        from opentelemetry.sdk.trace import export  # noqa: PLC0415
        from opentelemetry.trace import StatusCode  # noqa: PLC0415
    except ImportError as e:
        raise ConfigurationError(
            "traces: needs the extra `otel` (pip install 'mariner-gateway[otel]')"
        ) from e
    return trace_exporter, resources, trace, export, StatusCode


class Tracing(Observer):
    """See the module. Raises as :func:`load_library`."""

    def __init__(self, config: TracesConfig, name: str) -> None:
        trace_exporter, resources, trace, export, status = load_library()
        self._ratio = config.sample_ratio
        attributes = {"service.name": "mariner-gateway", "service.instance.id": name}
        resource = resources.Resource.create({**attributes, "service.version": __version__})
        self._provider = trace.TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = trace_exporter.OTLPSpanExporter(
            config.endpoint, timeout=limits.TRACES_STOP_TIMEOUT_S
        )
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("mariner", __version__)
        self._error = status.ERROR

    def on_session(self, session: Batch, persisted: bool) -> None:
        """Begin a span, when it is registered (``core.Observer``)."""
        # not for security
        if random.random() >= self._ratio or session.source == REMOTE_SOURCE:  # noqa: S311
            return
        span = self._tracer.start_span(
            "register",
            attributes={
                "mariner.session": f"{session.server}/{session.session}",
                "mariner.type": quoted_type(session.event_types[0]),
                "mariner.events": len(session),
                "mariner.bytes": session.payload_bytes,
            },
        )
        session.committed.add_done_callback(functools.partial(self._on_committed, span))

    def observe_query(self, params: QueryParams, seconds: float) -> None:
        """A query was answered."""
        if random.random() >= self._ratio:  # noqa: S311  # not for security
            return
        now_ns = time.time_ns()
        span = self._tracer.start_span(
            "query",
            start_time=now_ns - int(seconds * _NS),
            attributes={"mariner.query": query_name(type(params))},
        )
        span.end(now_ns)

    async def async_close(self) -> None:
        """Send what is left; bounded in time."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed: it took too long
                loop.call_soon_threadsafe(done.set)

        # not one of asyncio's threads, for which the process would wait at its end
        threading.Thread(target=stop, name="traces", daemon=True).start()
        await in_time(done.wait(), limits.TRACES_STOP_TIMEOUT_S)

    def _on_committed(self, span: "Span", committed: asyncio.Future[None]) -> None:
        if error := committed.exception():
            span.set_status(self._error, str(error)[: limits.MAX_REASON_BYTES])
        span.end()
