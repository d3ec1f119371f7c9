"""What of a new configuration a running gateway takes on, and what takes a restart."""

import copy
from typing import Any, Final

import pytest

from mariner.gateway import config, config_file

TLS: Final = {"cert": "c", "key": "k", "client_ca": "a"}
REMOTE: Final = {"server_id": 2, "host": "h", "port": 1, "token": "t", "tls": {"ca": "a"}}
CLIENT: Final = {"name": "app", "token": "t", "subscriptions": [], "register_events": []}
CONF: Final[dict[str, Any]] = {
    "name": "gateway",
    "mariner": {"host": "127.0.0.1", "port": 1, "tls": {**TLS}},
    "clients": [CLIENT, {**CLIENT, "name": "other"}],
    "schemas": [],
    "http": {},
    "event_core": {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": "store"},
        "eventer_server": {"host": "127.0.0.1", "port": 2, "token": "t", "tls": TLS},
        "replication": [REMOTE],
        "rsb": {"host": "127.0.0.1", "port": 3, "mode": "server"},
    },
}


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    conf = copy.deepcopy(CONF)
    target: Any = conf
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = to
    return conf


def compared(before: dict[str, Any], after: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What is changed by a reload, and what takes a restart."""
    running, wanted = config_file.parse(before, "before"), config_file.parse(after, "after")
    runs = config.taken_on(running, wanted)
    return list(config.differences(running, runs)), list(config.differences(runs, wanted))


CORE: Final = "event_core"
SERVER: Final = (CORE, "eventer_server")


@pytest.mark.parametrize(
    ("path", "to", "key"),
    [
        (("mariner", "tls", "cert"), "d", "mariner.tls.cert"),
        (("mariner", "tls", "crl"), "d", "mariner.tls.crl"),
        (("clients", 0, "token"), "u", "clients[app].token"),
        (("clients", 1, "subscriptions"), [["*"]], "clients[other].subscriptions"),
        (("clients", 0, "quota"), {"max_event_types": 1}, "clients[app].quota.max_event_types"),
        (("quota",), {"events_per_s": 1}, "quota.events_per_s"),
        (("clients",), [CLIENT], "clients[other]: removed"),
        (("clients",), [*CONF["clients"], {**CLIENT, "name": "x"}], "clients[x]: added"),
        (("schemas",), [{"$id": "a:b"}], "schemas"),
        (("log",), {"version": 1}, "log"),
        ((CORE, "backend", "retention"), [{"subscriptions": [], "size": 1}], None),
        ((*SERVER, "token"), "u", "event_core.eventer_server.token"),
        ((*SERVER, "quota"), {"bytes_per_s": 1}, "event_core.eventer_server.quota.bytes_per_s"),
        ((*SERVER, "tls", "key"), "l", "event_core.eventer_server.tls.key"),
        ((CORE, "replication", 0, "token"), "u", "event_core.replication[0].token"),
        ((CORE, "replication", 0, "tls"), {"ca": "b"}, "event_core.replication[0].tls.ca"),
        ((CORE, "rsb", "max_event_types"), 1, "event_core.rsb.max_event_types"),
    ],
)
def test_what_is_taken_on(path: tuple[str | int, ...], to: Any, key: str | None) -> None:
    expected = ".".join(map(str, path)) if key is None else key
    assert compared(CONF, changed(*path, to=to)) == ([expected], [])


@pytest.mark.parametrize(
    ("path", "to", "key"),
    [
        (("name",), "other", "name"),
        (("mariner", "port"), 9, "mariner.port"),
        (("mariner",), {"host": "127.0.0.1", "port": 1}, "mariner.tls"),
        (("http",), {"port": 5}, "http.port"),
        (("control",), "socket", "control"),
        ((CORE, "server_id"), 9, "event_core.server_id"),
        ((CORE, "backend", "path"), "other", "event_core.backend.path"),
        ((CORE, "backend", "conditions"), [], None),
        ((CORE, "backend"), {"type": "dummy"}, "event_core.backend"),
        ((CORE, "modules"), [{"module": "eventer_bridge.modules.audit"}], "event_core.modules"),
        ((*SERVER, "host"), "127.0.0.2", "event_core.eventer_server.host"),
        ((CORE, "replication"), [], "event_core.replication"),
        ((CORE, "replication", 0, "host"), "i", "event_core.replication[0].host"),
        ((CORE, "rsb", "port"), 4, "event_core.rsb.port"),
    ],
)
def test_what_takes_a_restart(path: tuple[str | int, ...], to: Any, key: str | None) -> None:
    expected = [] if key is None else [key]
    assert compared(CONF, changed(*path, to=to)) == ([], expected)


def test_both_at_once() -> None:
    conf = changed("mariner", "port", to=9)
    conf["mariner"]["tls"] = {**TLS, "cert": "d"}
    assert compared(CONF, conf) == (["mariner.tls.cert"], ["mariner.port"])


def test_a_group_was_told_the_token() -> None:
    monitor = {"host": "127.0.0.1", "port": 4, "group": "g"}
    before = changed(CORE, "monitor", to=monitor)
    after = copy.deepcopy(before)
    after["event_core"]["eventer_server"]["token"] = "u"
    assert compared(before, after) == ([], ["event_core.eventer_server.token"])


def test_a_relay() -> None:
    before = copy.deepcopy(CONF)
    del before["event_core"]
    before["eventer"] = {"host": "h", "port": 1, "token": "t"}
    after = copy.deepcopy(before)
    after["eventer"] = {"host": "i", "port": 1, "token": "u"}
    assert compared(before, after) == (["eventer.token"], ["eventer.host"])
    assert compared(before, CONF) == ([], ["event_core", "eventer"])
