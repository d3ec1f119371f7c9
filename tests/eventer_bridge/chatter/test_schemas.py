"""The SBS schemas are those that today's peers use, and the classic ones of 003."""

from hat.drivers import chatter
from hat.sbs import Repository

from eventer_bridge.resources import read_schema


def modules(repository: Repository) -> dict[str, object]:
    return {module["name"]: module for module in repository.to_json()}


def test_current_schema_is_that_of_real_peers() -> None:
    ours = Repository(read_schema("HatChatter.sbs"))
    assert modules(ours) == modules(chatter._sbs_repo)


def test_classic_schemas() -> None:
    repository = Repository(read_schema("Hat.sbs"), read_schema("HatPing.sbs"))
    assert repository.encode("HatPing.MsgPing", None) == b""
    assert repository.encode("HatPing.MsgPong", None) == b""
    data = {"module": ("value", "HatPing"), "type": "MsgPing", "data": b""}
    msg = {"id": 1, "first": 1, "owner": True, "token": True, "last": False, "data": data}
    encoded = bytes(repository.encode("Hat.Msg", msg))
    assert encoded == b"\x81\x81\x01\x01\x00\x81\x87HatPing\x87MsgPing\x80"
