"""What an attacked gateway is configured with: all its listeners, and clients of all kinds."""

from typing import Any, Final

_EVERYTHING: Final = [["*"]]

_SCHEMA_ID: Final = "attacks://texts"


CHOSEN: Final = "chosen"
"""The token of the clients that have a chosen one."""

_CHOSEN_HASH: Final = (
    "scrypt:470068a8bfe020ddd035aa860125bb24"
    ":3579ff990a0a9de9f390de3029b5eb7d7b8ce267ecb0d7193d4a7fde45665301"
)


def _client(name: str, subscriptions: list[list[str]], **rule: Any) -> dict[str, Any]:
    """A client whose token is its name, and who may register what it may see."""
    rules = [{"subscriptions": subscriptions, **rule}]
    return {
        "name": name,
        "token": name,
        "subscriptions": subscriptions,
        "register_events": rules,
    }


CLIENTS: Final = [
    _client("observer", _EVERYTHING),
    _client("witness", _EVERYTHING),
    _client("insider", [["app", "*"]]),
    _client("checked", [["checked", "*"]], schema_id=_SCHEMA_ID),
    _client("entitled", [["app", "*"], *([f"s{i}", "?", "*"] for i in range(20))]),
    _client("rights", [[f"s{i}", "?", "*"] for i in range(200)]),
    *({**_client(f"chosen {i}", []), "token": _CHOSEN_HASH} for i in range(12)),
]
"""Two honest clients, and those that attack: one with few rights, one whose payloads have to
satisfy a schema, two with many rights; and honest ones whose tokens are slow to check."""

SCHEMAS: Final = [
    {
        "$id": _SCHEMA_ID,
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 1}]},
    }
]

CORE: Final = {
    "eventer_server": {"host": "127.0.0.1", "port": 0, "token": "insider"},
    "rsb": {"host": "127.0.0.1", "port": 0, "mode": "server", "scopes_in": ["/"]},
}
"""Listeners for Hat's components, with one token for all, and for the RSB bus."""
