"""The audit trail: what is written, and that it cannot be flooded."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mariner import limits
from mariner.gateway import logs
from mariner.gateway.logs.audit import AuditConfig, AuditRate
from tests.mariner.gateway.logs.test_rate import Clock

audit = logging.getLogger("audit")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rate(clock: Clock) -> AuditRate:
    return AuditRate(clock)


def passes(rate: AuditRate, message: str, **extra: Any) -> bool:
    return rate.filter(logging.makeLogRecord({"name": "audit", "msg": message, **extra}))


def test_equal_lines_are_counted(rate: AuditRate, clock: Clock) -> None:
    assert passes(rate, "declined", peer="1.2.3.4:1", reason="x")
    for port in range(9_999):
        assert not passes(rate, "declined", peer=f"1.2.3.4:{port}", reason="x")
    assert passes(rate, "declined", peer="1.2.3.4:1", reason="y")
    assert passes(rate, "declined", peer="1.2.3.5:1", reason="x")
    assert passes(rate, "connected", peer="1.2.3.4:1", reason="x")
    assert rate.take() == []
    clock.now_s += limits.AUDIT_PERIOD_S
    [(message, fields)] = rate.take()
    assert message == "declined"
    expected = {"peer": "1.2.3.4", "reason": "x", "repeats": 9_999, "seconds": 60.0}
    assert fields == expected
    assert passes(rate, "declined", peer="1.2.3.4:1", reason="x")  # and the next period begins
    assert rate.take(is_last=True) == []


def test_an_address_has_few_lines_and_hides_nobody(rate: AuditRate, clock: Clock) -> None:
    n_passed = sum(passes(rate, "declined", peer="1.1.1.1:5", client=f"{i}") for i in range(500))
    assert n_passed == limits.MAX_AUDITED_OF_ADDRESS
    assert passes(rate, "declined", peer="2.2.2.2:5", client="1")
    clock.now_s += limits.AUDIT_PERIOD_S
    [(message, fields)] = rate.take()
    assert message == "declined"
    assert (fields["peer"], fields["repeats"]) == ("others", 500 - n_passed)
    n_passed = sum(passes(rate, "declined", peer="1.1.1.1:5", client=f"{i}") for i in range(500))
    assert n_passed == limits.MAX_AUDITED_OF_ADDRESS


def test_all_strangers_have_few_lines_and_clients_have_more(rate: AuditRate) -> None:
    peers = [f"10.0.{i // 250}.{i % 250}:1" for i in range(1_000)]
    n_passed = sum(passes(rate, "handshake failed", peer=peer) for peer in peers)
    assert n_passed == limits.MAX_AUDITED_STRANGERS
    n_passed = sum(passes(rate, "connected", client=f"{i}") for i in range(5_000))
    assert n_passed == limits.MAX_AUDITED_LINES
    told = rate.take(is_last=True)
    repeats = {message: fields["repeats"] for message, fields in told}
    assert repeats == {
        "handshake failed": 1_000 - limits.MAX_AUDITED_STRANGERS,
        "connected": 5_000 - limits.MAX_AUDITED_LINES,
    }
    assert sum(passes(rate, "handshake failed", peer=peer) for peer in peers) < len(peers)
    assert [passes(rate, message, **fields) for message, fields in told] == [True, True]


# --- where it goes --------------------------------------------------------------------------


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("logging_restored")
def test_a_file_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    logs.configure(None, AuditConfig(path))
    for _ in range(3):
        audit.info("connected", extra={"client": "app", "peer": "127.0.0.1:5"})
    logs.close()
    first, second = written(path)
    assert first.pop("time")[10] == "T"
    assert first == {"action": "connected", "client": "app", "peer": "127.0.0.1:5"}
    assert (second["repeats"], second["peer"]) == (2, "127.0.0.1")
    assert capfd.readouterr().err == ""
    # what is there is kept; and what is moved away
    logs.configure(None, AuditConfig(path))
    audit.info("reload")
    path.rename(tmp_path / "old")
    audit.info("backup")
    logs.close()
    assert [i["action"] for i in written(tmp_path / "old")] in (
        ["connected", "connected", "reload"],
        ["connected", "connected"],  # moved before it was written
    )
    assert written(path)[-1]["action"] == "backup"


@pytest.mark.usefixtures("logging_restored")
def test_within_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure(None, AuditConfig())
    audit.info("backup", extra={"path": "/x"})
    for i in range(limits.LOG_BURST_LINES + 100):  # more than other lines may be
        audit.info("connected", extra={"client": f"{i}"})
    logs.close()
    lines = [json.loads(i) for i in capfd.readouterr().err.splitlines()]
    assert lines[0]["logger"] == "audit"
    assert (lines[0]["message"], lines[0]["path"]) == ("backup", "/x")
    assert len(lines) == limits.LOG_BURST_LINES + 101


@pytest.mark.usefixtures("logging_restored")
def test_none_unless_it_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = {"level": "INFO", "handlers": ["stderr"]}
    info = {**logs.DEFAULT, "root": root}
    path = tmp_path / "audit"
    logs.configure(info, AuditConfig(path))
    logs.configure(info, AuditConfig())
    audit.info("backup")
    logs.configure(info)
    audit.info("restored")
    logs.close()
    assert path.read_text() == ""
    text = capfd.readouterr().err
    assert "backup" in text
    assert "restored" not in text


@pytest.mark.usefixtures("logging_restored")
def test_a_disk_that_is_full_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure(None, AuditConfig(Path("/dev/full")))
    audit.info("backup")
    logs.close()
    [line] = [json.loads(i) for i in capfd.readouterr().err.splitlines()]
    assert (line["message"], line["action"]) == ("audit line lost", "backup")
    assert "No space left" in line["exc_info"]
