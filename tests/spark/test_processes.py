"""Work in parts by several processes: done once each, and no process is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mariner_spark.errors import ProcessKilledError
from mariner_spark.lake.ingest import do_all, processes
from tests.spark.lake.support import wait_until


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def end(_part: int) -> int:
    if psutil.Process().parent() == psutil.Process(_part):
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fail(part: int) -> int:
    raise ValueError(part)


def test_one_part_needs_no_other_process() -> None:
    with processes() as pool:
        assert do_all(pool, pid_after, [0]) == [os.getpid()]
        assert do_all(pool, pid_after, []) == []


def test_parts_are_done_by_this_process_and_others() -> None:
    steps = []
    with processes() as pool:
        for _ in range(2):
            pids = do_all(pool, pid_after, [0.1] * 20, lambda *i: steps.append(i))
            assert len(pids) == 20
            others = set(pids) - {os.getpid()}
            assert others
            assert os.getpid() in pids
    assert steps == [(i + 1, 20) for i in range(20)] * 2
    wait_until(lambda: not any(psutil.pid_exists(i) for i in others))


def test_an_error_ends_all() -> None:
    with pytest.raises(ValueError, match=r"^1$"), processes() as pool:
        do_all(pool, fail, [1] * 9)


@pytest.mark.parametrize("n_parts", [2, 9])
def test_a_process_that_is_killed_is_told(n_parts: int) -> None:
    message = "^one of the processes was killed, perhaps for lack of memory; nothing was added"
    with processes() as pool:
        for _ in range(2):  # when it works, and before
            with pytest.raises(ProcessKilledError, match=message):
                do_all(pool, end, [os.getpid()] * n_parts)


def test_others_end_when_this_process_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\n"
        "from mariner_spark.lake.ingest import do_all, processes\n"
        "def work(part):\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    with processes() as pool:\n"
        "        do_all(pool, work, [1, 2])\n"
    )
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
    assert process.pid in pids
    wait_until(lambda: not any(psutil.pid_exists(i) for i in pids))
