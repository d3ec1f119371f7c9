"""Traces: spans of registrations and queries, as a collector gets them."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

pytest.importorskip("opentelemetry.sdk", reason="there is no OpenTelemetry (extra otel)")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider

from eventer_bridge.errors import ConfigurationError
from mariner import limits as gateway_limits
from tests.eventer_bridge.backends.faults import failing_for_good
from tests.support.event_servers import event_server, eventer_port
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req

QUERY: Final = {"msg_type": "query_req", "query_id": 1, "query_type": "latest"}


class Collector:
    """Takes spans, by OTLP over HTTP."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.resources: list[dict[str, str]] = []
        self.spans: list[Span] = []

    async def on_request(self, request: web.Request) -> web.Response:
        batch = ExportTraceServiceRequest.FromString(await request.read())
        for of_resource in batch.resource_spans:
            self.resources.append(
                {i.key: i.value.string_value for i in of_resource.resource.attributes}
            )
            for scope in of_resource.scope_spans:
                self.spans += scope.spans
        return web.Response(content_type="application/x-protobuf")

    def named(self, name: str) -> list[Span]:
        return [i for i in self.spans if i.name == name]


def attributes(span: Span) -> dict[str, Any]:
    values = {i.key: i.value for i in span.attributes}
    return {key: getattr(i, str(i.WhichOneof("value"))) for key, i in values.items()}


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.add_routes([web.post("/v1/traces", collector.on_request)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        [(_, port)] = runner.addresses
        collector.endpoint = f"http://127.0.0.1:{port}/v1/traces"
        yield collector
    finally:
        await runner.cleanup()


async def test_registrations_and_queries(tmp_path: Path) -> None:
    async with collecting() as collector:
        traces = {"endpoint": collector.endpoint, "sample_ratio": 1.0}
        async with running_gateway(path=tmp_path / "store", traces=traces) as gateway:
            started_ns = time.time_ns()
            async with await RawPeer.init(gateway.mariner.port) as peer:
                for i in range(3):
                    answer = await peer.request(register_req(i, event("a", "b"), event("c")))
                await peer.request({**QUERY, "event_types": [["a", "b"]]})
            ended_ns = time.time_ns()
        # all of them were sent when it stopped
        assert (
            collector.resources[0].items()
            >= {
                "service.name": "mariner-gateway",
                "service.instance.id": "test",
            }.items()
        )
        of_client = [
            i for i in collector.named("register") if attributes(i)["mariner.type"] == "'a/b'"
        ]
        assert len(of_client) == 3
        ids = answer["events"][0]["id"]
        assert attributes(of_client[-1]) == {
            "mariner.session": f"{ids['server']}/{ids['session']}",
            "mariner.type": "'a/b'",
            "mariner.events": 2,
            "mariner.bytes": 2,
        }
        [query] = collector.named("query")
        assert attributes(query) == {"mariner.query": "latest"}
        for span in (*of_client, query):
            begin_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
            assert started_ns < begin_ns < end_ns < ended_ns
            assert span.status.code == Status.STATUS_CODE_UNSET


async def test_a_registration_that_fails(tmp_path: Path) -> None:
    async with collecting() as collector:
        traces = {"endpoint": collector.endpoint, "sample_ratio": 1.0}
        async with (
            running_gateway(path=tmp_path / "store", traces=traces) as gateway,
            await RawPeer.init(gateway.mariner.port) as peer,
        ):
            await peer.request(register_req(0, event("good")))  # the last of the commits before
            with failing_for_good():
                peer.send(register_req(1, event("bad")))
                while "register_res" not in (answer := await peer.receive()).values():
                    pass
                assert not answer["success"]
        [span] = [i for i in collector.spans if "'bad'" in attributes(i).values()]
        assert span.status.code == Status.STATUS_CODE_ERROR
        assert "commit failed: IO error: " in span.status.message


async def test_a_sample(tmp_path: Path) -> None:
    async with collecting() as collector:
        traces = {"endpoint": collector.endpoint, "sample_ratio": 0.5}
        async with (
            running_gateway(traces=traces) as gateway,
            await RawPeer.init(gateway.mariner.port) as peer,
        ):
            for i in range(400):
                await peer.request(register_req(i, event("a")))
        found = [i for i in collector.named("register") if "'a'" in attributes(i).values()]
        assert 100 < len(found) < 300  # it is ten standard deviations off otherwise


async def test_not_of_other_servers(tmp_path: Path) -> None:
    async with collecting() as collector:
        traces = {"endpoint": collector.endpoint, "sample_ratio": 1.0}
        async with (
            event_server(tmp_path, 1) as first,
            event_server(tmp_path, 2, remotes={1: eventer_port(first)}, traces=traces) as replica,
            await RawPeer.init(first.mariner.port) as peer,
            await RawPeer.init(replica.mariner.port, subscriptions=[["a"]]) as reader,
        ):
            await peer.request(register_req(1, event("a")))
            assert (await reader.receive())["events"][0]["type"] == ["a"]
        names = {attributes(i)["mariner.type"] for i in collector.named("register")}
        assert any(name.startswith("'event/2/") for name in names)
        assert "'a'" not in names


@pytest.mark.parametrize("is_listening", [True, False])
async def test_a_collector_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_listening: bool
) -> None:
    monkeypatch.setattr(gateway_limits, "TRACES_STOP_TIMEOUT_S", 0.3)
    ext_shutdown, go_on = TracerProvider.shutdown, threading.Event()

    def ext_held(provider: TracerProvider) -> None:
        go_on.wait(60)
        ext_shutdown(provider)

    monkeypatch.setattr(TracerProvider, "shutdown", ext_held)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if is_listening:
            silent.listen()
        traces = {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}/", "sample_ratio": 1.0}
        async with (
            running_gateway(traces=traces) as gateway,
            await RawPeer.init(gateway.mariner.port) as peer,
        ):
            for i in range(100):
                assert (await peer.request(register_req(i, event("a"))))["success"]
        # it has ended, and left the thread behind that still sends
        [sending] = [i for i in threading.enumerate() if i.name == "traces"]
        go_on.set()
        await asyncio.to_thread(sending.join)


def test_it_costs_nothing_when_it_is_off() -> None:
    code = "import sys, mariner.gateway.gateway; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_nobody_observes_when_it_is_off() -> None:
    async with running_gateway() as gateway:
        assert "Tracing" not in {type(i).__name__ for i in gateway.core._observers}


async def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    text = r"^traces: needs the extra `otel` \(pip install 'mariner-gateway\[otel\]'\)$"
    with pytest.raises(ConfigurationError, match=text):
        async with running_gateway(traces={"endpoint": "http://127.0.0.1:1"}):
            pass


@pytest.mark.parametrize(
    ("traces", "reason"),
    [
        ({}, "traces.endpoint: missing"),
        ({"endpoint": "127.0.0.1"}, "traces.endpoint: '127.0.0.1'"),
        ({"endpoint": "http://x", "sample_ratio": 2}, "traces.sample_ratio: 2"),
    ],
)
async def test_a_wrong_configuration(traces: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        async with running_gateway(traces=traces):
            pass
    assert reason in str(raised.value)
