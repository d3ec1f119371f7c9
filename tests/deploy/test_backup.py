"""The backup timer and the restore drill: what their units run, run beside a real gateway."""

import asyncio
import re
import shlex
import sys
from pathlib import Path
from typing import Final

import pytest

from mariner.cli import backup_places
from tests.support.gateway import Gateway, gateway
from tests.support.inprocess import metrics_text_of
from tests.support.peer import RawPeer, event, register_req

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "backup"


async def start(unit: str, tmp_path: Path, place: Path) -> tuple[int, str]:
    """Run what systemd would, until something fails; then what it runs in any case.

    Returns:
        The exit code, and what was printed.
    """
    text = (DEPLOY / unit).read_text()
    for before, after in {
        "/opt/mariner/bin/mariner": f"{sys.executable} -m mariner",
        "${BACKUP_PLACE}": str(place),
        "/etc/mariner/gateway.yaml": str(tmp_path / "gateway.json"),
        "/var/cache/mariner-restore-drill": str(tmp_path / "drill"),
    }.items():
        text = text.replace(before, after)
    code, printed = 0, ""
    for key in ("ExecStartPre", "ExecStart", "ExecStopPost"):
        for command in re.findall(f"^{key}=(.*)$", text, re.MULTILINE):
            if code and key != "ExecStopPost":
                continue
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            stdout, _ = await process.communicate()
            printed += stdout.decode()
            code = code or process.returncode or 0
    return code, printed


async def moments_s(running: Gateway) -> tuple[float, float]:
    """Of the last backup, and of the last drill; 0: never."""
    text = await metrics_text_of(running.http_port)
    found = [
        re.findall(rf"^mariner_{name}_timestamp_seconds (\S+)$", text, re.MULTILINE)
        for name in ("backup", "restore_drill")
    ]
    return float(found[0][0]), float(found[1][0])


async def test_the_timer_backs_up_and_the_drill_restores(tmp_path: Path) -> None:
    place = tmp_path / "backups"
    (tmp_path / "drill").mkdir()
    async with gateway(tmp_path, http=True) as running:
        assert await moments_s(running) == (0, 0)
        async with await RawPeer.init(running.port) as peer:
            for i in range(50):
                await peer.request(register_req(i, event("a", str(i))))
        code, printed = await start("mariner-restore-drill.service", tmp_path, place)
        assert (code, printed) == (1, f"mariner: error: {place}: there is no backup\n")
        code, printed = await start("mariner-backup.service", tmp_path, place)
        assert code == 0, printed
        backed_up_s, drilled_s = await moments_s(running)
        assert backed_up_s > drilled_s == 0
        code, printed = await start("mariner-restore-drill.service", tmp_path, place)
        assert code == 0, printed
        assert re.search(r"store: (5\d|6\d) events, .*: ok$", printed, re.MULTILINE)
        assert not list((tmp_path / "drill").iterdir())
        known_s = await moments_s(running)
        assert known_s[0] == backed_up_s < known_s[1]
    async with gateway(tmp_path, http=True) as running:  # which knows of them
        assert await moments_s(running) == pytest.approx(known_s, abs=0.1)

        # a backup that cannot be restored is noticed
        [name] = backup_places.find(str(place)).names()
        [file, *_] = sorted((place / name).glob("*.sst"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        file.write_bytes(data)
        code, printed = await start("mariner-restore-drill.service", tmp_path, place)
        assert code == 1
        assert f"{name}/{file.name}: is not what was backed up" in printed
        assert await moments_s(running) == pytest.approx(known_s, abs=0.1)
        assert not list((tmp_path / "drill").iterdir())
