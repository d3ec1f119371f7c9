"""The README's tour: its commands run, and print what it shows but for times and sizes."""

import os
import re
import resource
import runpy
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import pytest

from tests.support.machine import ROOT, Machine

README: Final = (ROOT / "README.md").read_text()
TOUR: Final = README.partition("## A tour in five minutes")[2].partition("\n## ")[0]

_machine: Final = runpy.run_path(str(ROOT / "deploy/demo/machine.py"))
MEASURED: Final = ["/".join(event.type) for event in _machine["measurements"]()]
"""Types that the example application registers on this machine; in the README there are nine."""

COUNTED: Final = {
    "registered 90 events": f"registered {10 * len(MEASURED)} events",
    "109 events": f"{19 + 10 * len(MEASURED)} events",
    "15 types": f"{6 + len(MEASURED)} types",
}
"""What depends on how many there are."""

LOST: Final = ("counter: connection lost: 127.", "counter: client is not connected: 127.")
"""Beginnings of what the counter says when the plug is pulled; how often depends on the moment."""

VARYING: Final = {
    r"\d{4}-\d\d-\d\dT[\d:.]+Z": "TIME",
    r'"(s|us)":\d+': r'"\1":N',
    r'"value":[\d.]+': '"value":N',
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "UUID",
    r"\b\d+ bytes": "N bytes",
    r"\b[\d./]+ (ms|s)\b": r"N \1",
    r"=[\d.]+ ms": "=N ms",
    r"^(\d+/\d+)/\d+ machine/": r"\1/N machine/",
    r"var/certs: .*": "CERTIFICATES",
    " +": " ",
}


class Step(NamedTuple):
    """A command, and what it prints."""

    command: str
    shown: str


def steps() -> list[Step]:
    found: list[Step] = []
    for block in re.findall(r"(?:^    .*\n|^\n(?=    (?!\$)))+", TOUR, re.MULTILINE):
        for command in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            first, _, shown = command.partition("\n")
            found.append(Step(first, re.sub("^    ", "", shown, flags=re.MULTILINE)))
    return found


def bare(text: str, *, is_of_readme: bool) -> list[str]:
    """Lines without what differs from time to time, and from machine to machine."""
    lines: list[str] = []
    for line in text.splitlines():
        if (found := re.search(r" (machine/\S+) ", line)) and (
            found[1] not in MEASURED or re.fullmatch(r"machine/cpu/[1-9]\d*", found[1])
        ):
            continue
        left = line
        for pattern, replacement in VARYING.items():
            left = re.sub(pattern, replacement, left)
        for shown, here in COUNTED.items() if is_of_readme else ():
            left = left.replace(shown, here)
        lines.append(left.rstrip())
    return lines


class Tour:
    """Terminals beside each other, in a copy of the files that the tour uses."""

    def __init__(self, machine: Machine) -> None:
        self.access: dict[str, str] = {}
        self._machine = machine
        self._gateways: list[subprocess.Popen[str]] = []
        text = (ROOT / "deploy/development.yaml").read_text()
        self._folder = machine.root / "src"
        (self._folder / "deploy/development.yaml").write_text(machine.translate(text))
        program = (machine.root / "opt/program").read_text()
        machine.script("usr/local/bin/mariner", program.partition("\n")[2])
        python = program.partition("\n")[2].replace(" -m mariner", "")
        machine.script("usr/local/bin/python", python)

    def start(self) -> list[str]:
        """``make run``; what it prints, but for its log."""
        text = (ROOT / "Makefile").read_text()
        [recipe] = re.findall(r"^run:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
        *before, serve = [i.strip().replace("$(BIN)/", "") for i in recipe.splitlines()]
        printed = [line for i in before for line in self._machine.run(i).splitlines()]
        gateway = self._popen(serve)
        self._gateways.append(gateway)
        assert gateway.stderr is not None
        lines = until(gateway.stderr, "development: listening: http ")
        return [*printed, *(line for line in lines if not line.startswith("{"))]

    def translate(self, text: str) -> str:
        """What the README shows, for this machine."""
        return self._machine.translate(text)

    def run(self, step: Step) -> list[str]:
        """Run a command; what it prints."""
        return self._machine.run(step.command).splitlines()

    def pull_the_plug(self, count: Step) -> list[str]:
        """Ctrl-\\ while events are counted, and start again; what the count prints."""
        with self._popen(count.command) as counting:
            assert counting.stdout is not None
            assert counting.stderr is not None
            printed = until(counting.stdout, "counter: seen ")
            for gateway in self._gateways:
                resource.prlimit(gateway.pid, resource.RLIMIT_CORE, (0, 0))
            assert self.end(signal.SIGQUIT) == -signal.SIGQUIT
            lost = until(counting.stderr, "counter: connection lost")
            self.start()
            return [*printed, *lost, *counting.stdout.read().splitlines()]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C; the exit code."""
        for gateway in self._gateways:
            gateway.send_signal(number)
        return self._end()

    def _end(self) -> int:
        code = 0
        for gateway in self._gateways:
            with gateway:
                code = gateway.wait()
        self._gateways.clear()
        return code

    def _popen(self, command: str) -> subprocess.Popen[str]:
        name, *arguments = shlex.split(command)
        return subprocess.Popen(
            [self._machine.root / "usr/local/bin" / name, *arguments],
            cwd=self._folder,
            env={**os.environ, "MARINER_PORT": self._machine.ports["23014"], **self.access},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def until(lines: IO[str], beginning: str) -> list[str]:
    """Lines up to the first that begins so."""
    found: list[str] = []
    for line in lines:
        found.append(line.rstrip())
        if line.startswith(beginning):
            return found
    raise AssertionError(f"not printed: {beginning}; but {found}")


@pytest.fixture
def tour(tmp_path: Path) -> Iterator[Tour]:
    made = Tour(Machine(tmp_path / "machine"))
    yield made
    made.end(signal.SIGKILL)


@pytest.mark.timeout(900)
def test_the_tour(tour: Tour) -> None:
    waiting = steps()
    assert waiting[0].command == "make run"
    while waiting:
        step = waiting.pop(0)
        if step.command == "make run":
            printed = tour.start()
        elif step.command.endswith("counter.py"):
            printed = tour.pull_the_plug(step)
            shown = [i for i in step.shown.splitlines() if not i.startswith(LOST)]
            step = step._replace(shown="\n".join(shown))
            printed = [i for i in printed if not i.startswith(LOST)]
        else:
            if step.command.startswith("export MARINER_"):
                tour.access = dict(i.split("=") for i in shlex.split(step.command)[1:])
            printed = tour.run(step)
        expected = bare(tour.translate(step.shown), is_of_readme=True)
        assert bare("\n".join(printed), is_of_readme=False) == expected, step.command
    assert tour.end() == 0
