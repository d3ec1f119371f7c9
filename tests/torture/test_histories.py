"""Histories in small: mixed faults of a gateway and of a pair, and losses of power."""

import ast
import random
import re
from pathlib import Path

import pytest

from tests.torture import histories
from tests.torture.histories import checks, disk, pair, power, single
from tests.torture.histories.record import KEPT, KEYED, PLAIN, Attempt, History, Token, Visit, Wish
from tests.torture.report import UnavailableError, no_progress
from tests.torture.strace import Call, require_strace

AS_PROMISED = (
    r"\d rounds, \d faults; \d+ requests, .* events stored, \d+ read by 9 readers .*promised"
)


async def test_a_gateway_does_what_is_promised_whatever_is_done_to_it(tmp_path: Path) -> None:
    outcome = await single.run(tmp_path, 2, random.Random("20"), no_progress)
    assert re.match(AS_PROMISED, outcome)


async def test_so_does_a_pair(tmp_path: Path) -> None:
    outcome = await pair.run(tmp_path, 1, random.Random("20"), no_progress)
    assert re.match(AS_PROMISED, outcome)


async def test_a_loss_of_power_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        require_strace()
    except UnavailableError as e:
        pytest.skip(str(e))
    monkeypatch.setattr(power, "WORK_S", 1.0)
    outcome = await power.run(tmp_path, 2, random.Random("3"), no_progress)
    assert re.match(
        r"2 losses of power: \d+ events acknowledged before, none of them lost", outcome
    )


def test_clients_and_checks_share_nothing_with_the_product() -> None:
    for path in Path(histories.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [i.name for i in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {i.partition(".")[0] for i in names} & {"eventer_bridge", "mariner"}, path


# --- what the checks find -----------------------------------------------------------------

ONE, TWO = Token(1, 1, 0, 1, KEPT), Token(1, 2, 0, 1, KEPT)
FIRST, SECOND = (1, 5, 1), (1, 6, 1)
READER = Wish("start", start=True)


def history(**changes: object) -> History:
    """Two requests of a writer without keys, stored, and a reader that got both."""
    attempts = [
        Attempt(1, 1, PLAIN, 1, 1, 1.0, 2.0, "ok", [FIRST]),
        Attempt(1, 2, PLAIN, 1, 1, 3.0, 4.0, "ok", [SECOND]),
    ]
    visit = Visit(1, 0.0, is_first=True, items=[("events", 5.0, [(FIRST, ONE), (SECOND, TWO)])])
    made = {
        "attempts": attempts,
        "visits": {READER: [visit]},
        "stored": {1: {FIRST: ONE, SECOND: TWO}},
        "timestamps": {1: [(1, 0), (1, 1)]},
        **changes,
    }
    return History(**made)  # type: ignore[arg-type]


def visits(*events: list[tuple[tuple[int, int, int], Token]]) -> list[Visit]:
    """Connections of a reader that went on behind what it saw, and what came over each."""
    return [
        Visit(1, float(n), is_first=not n, items=[("events", n + 0.5, some)])
        for n, some in enumerate(events)
    ]


def test_a_history_that_is_right() -> None:
    assert not [*checks.check(history())]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stored": {1: {FIRST: ONE}}, "timestamps": {1: [(1, 0)]}}, "answered with"),
        ({"timestamps": {1: [(1, 1), (1, 0)]}}, "timestamps go back"),
        ({"attempts": [Attempt(1, 1, PLAIN, 1, 1, 1.0, 2.0, "refused")]}, "was refused, and is"),
        ({"attempts": []}, "that nobody sent"),
        ({"stored": {1: {FIRST: ONE, SECOND: ONE}}}, "was sent once, and is stored 2 times"),
        ({"stored": {1: {FIRST: TWO, SECOND: ONE}}}, "and start saw"),
        (
            {
                "attempts": [
                    Attempt(1, 1, PLAIN, 1, 1, 5.0, 6.0, "ok", [FIRST]),
                    Attempt(1, 2, PLAIN, 1, 1, 3.0, 4.0, "ok", [SECOND]),
                ]
            },
            "although it was sent after",
        ),
        (
            {"attempts": [Attempt(1, n, KEYED, 1, 1, n, n + 0.5) for n in (1, 2)]},
            "was never answered",
        ),
        ({"visits": {READER: visits([(FIRST, ONE)])}}, "start missed 1 events of 1 sessions"),
        ({"visits": {READER: visits([(SECOND, TWO)])}}, "start missed 1 events"),
        (
            {"visits": {READER: visits([(FIRST, ONE)], [(FIRST, ONE), (SECOND, TWO)])}},
            "start got (1, 5, 1) behind (1, 5, 1)",
        ),
        (
            {"visits": {Wish("c", cursor="c"): visits([(SECOND, TWO)])}},
            "(1, 0, 0) was acknowledged, 1 events in between never came",
        ),
        (
            {
                "visits": {
                    Wish("c", cursor="c"): [
                        Visit(
                            *(1, 0.0, True),
                            [
                                ("events", 0.5, [(FIRST, ONE), (SECOND, TWO)]),
                                ("ack", 0.6, ([SECOND], [], 1)),
                                ("known", 0.7, 1),
                            ],
                        ),
                        *visits([], [(SECOND, TWO)])[1:],
                    ]
                }
            },
            "cursor c went back",
        ),
    ],
)
def test_what_is_wrong_is_found(changes: dict[str, object], problem: str) -> None:
    assert any(problem in i for i in checks.check(history(**changes)))


def test_a_disk_keeps_what_was_synced(tmp_path: Path) -> None:
    def path(name: str) -> str:
        return '"' + "".join(f"\\x{i:02x}" for i in str(tmp_path / "a" / name).encode()) + '"'

    texts = [
        f"openat(AT_FDCWD, {path('x')}, O_WRONLY|O_CREAT, 0600) = 3",
        'write(3, "\\x61\\x62", 2)    = 2',
        "fdatasync(3)                       = 0",
        'write(3, "\\x63", 1)    = 1',
        f"openat(AT_FDCWD, {path('y')}, O_WRONLY|O_CREAT, 0600) = 4",
        f"rename({path('y')}, {path('z')}) = 0",
    ]
    found = set()
    for seed in range(50):
        it = disk.Disk(tmp_path / "a")
        it.replay(Call(n, n, text, 0.0) for n, text in enumerate(texts))
        it.cut(tmp_path / str(seed), random.Random(seed))
        left = {i.name: i.read_bytes() for i in (tmp_path / str(seed)).iterdir()}
        found.add((left.pop("x"), *left))
    assert found == {(x, *names) for x in (b"ab", b"abc") for names in ((), ("y",), ("z",))}
