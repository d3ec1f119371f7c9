"""What RSB's tools are told: by hand-made questions of a peer on the bus."""

import os
from uuid import UUID, uuid4

from eventer_bridge.rsb.codec import Bye, Hello
from eventer_bridge.rsb.event import Informer, RsbEvent, parse_scope
from eventer_bridge.rsb.introspection import PARTICIPANTS_SCOPE
from tests.eventer_bridge.rsb.peers import RawPeer, raw_server
from tests.eventer_bridge.rsb.samples import sample
from tests.eventer_bridge.rsb.test_bridge import bridging, rsb_port, stats
from tests.support.waiting import until

TOOL = Informer(PARTICIPANTS_SCOPE)


def check_hello(event: RsbEvent) -> tuple[str, str, UUID]:
    hello = Hello.FromString(event.data)
    participant = UUID(bytes=hello.id)
    assert event.schema == ".rsb.protocol.introspection.Hello"
    assert event.scope == parse_scope(f"/__rsb/introspection/participants/{participant}/")
    assert hello.process.id == str(os.getpid())
    assert hello.process.display_name == "test"
    assert hello.host.hostname
    return hello.kind, hello.scope, participant


async def test_a_survey_is_answered_by_each_participant() -> None:
    survey = TOOL.create(PARTICIPANTS_SCOPE, method="SURVEY")
    async with (
        bridging(scopes_in=["/a/", "/b/"], scopes_out=["/cmd/"]) as gateway,
        await RawPeer.connect(rsb_port(gateway)) as tool,
    ):
        tool.send(survey)
        answers = [await tool.receive() for _ in range(3)]
        assert all(i.causes == (survey.event_id,) for i in answers)
        found = [check_hello(i) for i in answers]
        assert [i[:2] for i in found] == [
            *(("informer", "/cmd/"), ("listener", "/a/"), ("listener", "/b/")),
        ]

        ping = TOOL.create(PARTICIPANTS_SCOPE, "utf-8-string", b"ping", method="SURVEY")
        tool.send(ping)
        pongs = [await tool.receive() for _ in range(3)]
        assert [(i.schema, i.data, i.causes) for i in pongs] == [
            ("utf-8-string", b"pong", (ping.event_id,))
        ] * 3

        request = TOOL.create(answers[1].scope, method="REQUEST")
        tool.send(request)
        again = await tool.receive()
        assert check_hello(again) == found[1]
        assert again.causes == (request.event_id,)


async def test_what_is_no_question_is_not_answered_and_nothing_is_registered() -> None:
    elsewhere = parse_scope(f"/__rsb/introspection/participants/{uuid4()}/")
    async with (
        bridging(scopes_in=["/"]) as gateway,
        await RawPeer.connect(rsb_port(gateway)) as tool,
    ):
        tool.send(
            TOOL.create(PARTICIPANTS_SCOPE, method="HELLO"),
            TOOL.create(PARTICIPANTS_SCOPE),
            TOOL.create(elsewhere, method="REQUEST"),
            TOOL.create(elsewhere, method="SURVEY"),
            TOOL.create(PARTICIPANTS_SCOPE, "utf-8-string", b"other", method="SURVEY"),
            sample(1),
        )
        await until(lambda: stats(gateway).events_registered == 1)
        assert stats(gateway).frames_in == 6
        assert stats(gateway).frames_out == 0


async def test_a_client_says_hello_and_bye() -> None:
    async with raw_server() as server, bridging(mode="client", port=server.port) as gateway:
        peer = await server.accept()
        hellos = [check_hello(await peer.receive()) for _ in range(2)]
        assert [i[:2] for i in hellos] == [("informer", "/cmd/"), ("listener", "/")]
        gateway.close()
        byes = [await peer.receive() for _ in range(2)]
        assert [UUID(bytes=Bye.FromString(i.data).id) for i in byes] == [i[2] for i in hellos]
        assert await peer.is_ended()
        peer.writer.write_eof()
