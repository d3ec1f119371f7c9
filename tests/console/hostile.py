"""What events may contain to break out of their place on a page."""

from typing import Final

from eventer_bridge.model import BinaryPayload, JsonPayload, RegisterEvent

BREAK: Final = "window.broken=1;document.title='broken'"

TEXTS: Final = (
    f"</script><script>{BREAK}</script>",
    f'<img src=x onerror="{BREAK}">',
    f'{{{{constructor.constructor("{BREAK}")()}}}}',
    f"`${{{BREAK}}}`",
    f'\'"></label><svg onload="{BREAK}">',
    f"javascript:{BREAK}",
    "a\x00\x1b[31m\u202e\u2028b",
    "__proto__",
    "x" * 900,
)

KEYS: Final = {
    # NiceGUI takes values of such keys of options for scripts
    ":formatter": BREAK,
    ":value": f"(() => {{{BREAK}; return 1}})()",
    "__proto__": {"polluted": True},
    "constructor": 1,
    **dict.fromkeys(TEXTS, 1.5),
}


def events() -> list[RegisterEvent]:
    """Events that have them in all their parts."""
    made = [
        RegisterEvent(("hostile", i), None, JsonPayload.of({"value": 1, **KEYS})) for i in TEXTS
    ]
    made += [RegisterEvent((i, "hostile"), None, JsonPayload.of(i)) for i in TEXTS]
    made += [RegisterEvent(("alarm", i), None, JsonPayload.of(ALARM)) for i in TEXTS]
    made.append(RegisterEvent(("hostile", "binary"), None, BinaryPayload(TEXTS[0], b"<b>" * 99)))
    return made


ALARM: Final = {"state": "RAISED", "value": 9, "limit": 8, **KEYS}
