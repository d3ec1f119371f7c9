"""Memory that threads have freed is not kept, and what is there for good is left alone."""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.hat_peers import write_conf

N_THREADS: Final = 8
N_BYTES: Final = 12 << 20
BLOCK_BYTES: Final = 2 << 20

CODE: Final = f"""
import psutil, sys, threading
from mariner.gateway import memory

if sys.argv[1] == "yes":
    memory.configure()
bytes({N_BYTES})  # freed, and so the size of what is usually kept
before = psutil.Process().memory_info().rss
kept = []
is_over = threading.Event()

def work():
    blocks = [bytes({BLOCK_BYTES}) for _ in range({N_BYTES} // {BLOCK_BYTES})]
    kept.append(bytes(600))
    del blocks
    is_over.wait()

threads = [threading.Thread(target=work) for _ in range({N_THREADS})]
for thread in threads:
    thread.start()
while len(kept) < {N_THREADS}:
    pass
is_over.set()
for thread in threads:
    thread.join()
print(psutil.Process().memory_info().rss - before)
"""


def kept_bytes(is_configured: bool) -> int:
    command = [sys.executable, "-c", CODE, "yes" if is_configured else "no"]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_what_threads_freed_goes_back_to_the_system() -> None:
    kept = kept_bytes(True)
    assert kept < N_BYTES
    assert kept < kept_bytes(False) / 2


SERVE: Final = """
import gc, sys
from mariner.cli import serve

visited = []

def count(phase, info):
    if phase == "start" and info["generation"] == 2:
        visited.append(len(gc.get_objects()))

async def create(conf, **_):
    print(gc.get_freeze_count(), len(gc.get_objects()), int("aiohttp" in sys.modules))
    gc.callbacks.append(count)
    made = [[] for _ in range(300_000)]  # as those of 10,000 connections
    print(len(visited), max(visited), sum(visited))
    raise OSError("that is all")

serve.gateway.create = create
serve.serve(["--conf", sys.argv[1]])
"""


def test_the_garbage_collector_visits_what_is_there_once(tmp_path: Path) -> None:
    conf = {
        "type": "mariner",
        "name": "gateway",
        "log": {"version": 1},
        "mariner": {"host": "127.0.0.1", "port": 0},
        "event_core": {"server_id": 1, "backend": {"type": "memory"}},
        "clients": [],
        "http": {"host": "127.0.0.1", "port": 0},
    }
    path = write_conf(tmp_path / "gateway.json", conf)
    command = [sys.executable, "-c", SERVE, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "that is all" in ended.stderr
    n_frozen, n_others, is_all_imported, n_full, most, total = map(int, ended.stdout.split())
    assert n_frozen > 20 * n_others
    assert is_all_imported
    assert n_full > 10
    assert most < 30_000
    assert total < 310_000


GARBAGE: Final = """
import gc, sys, weakref
from mariner import limits
from mariner.gateway import memory

class Circle:
    def __init__(self):
        self.itself = self

def grow(share):
    # few of these blocks are looked at
    n_blocks = int(share * limits.MIN_GROWTH_BLOCKS)
    return [bytearray() for _ in range(n_blocks)], [[] for _ in range(50_000)]

memory.configure()
memory.collect()
before = grow(3) if sys.argv[1] != "few" else None
circle = Circle()
found = weakref.ref(circle)
gc.collect()  # it is there, and frozen
del circle
if sys.argv[1] == "many, gone":
    del before
gc.collect()
print(int(found() is None))
grown = grow(0.8)
print(int(found() is None))
grown += grow(0.4)
print(int(found() is None))
gc.collect()
print(gc.get_freeze_count(), len(gc.get_objects()))
"""


@pytest.mark.parametrize(
    ("before", "expected"), [("few", [0, 0, 1]), ("many, gone", [0, 0, 1]), ("many", [0, 0, 0])]
)
def test_garbage_that_was_frozen_is_found_when_memory_has_doubled(
    before: str, expected: list[int]
) -> None:
    command = [sys.executable, "-c", GARBAGE, before]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    *was_found, n_frozen, n_others = map(int, ended.stdout.split())
    assert was_found == expected
    assert n_frozen > 20 * n_others


CREATED: Final = """
import gc, sys
from mariner import limits
from mariner.gateway import memory

visited = []

def count(phase, info):
    if phase == "start" and info["generation"] == 2:
        visited.append(len(gc.get_objects()))

memory.configure()
if sys.argv[1] == "at once":
    gc.disable()
store = [[] for _ in range(2 * limits.MIN_GROWTH_BLOCKS)]
gc.enable()
memory.collect()
gc.callbacks.append(count)
made = [[] for _ in range(100_000)]
print(len(visited), max(visited, default=0))
"""


@pytest.mark.parametrize("how", ["at once", "in steps"])
def test_what_was_created_at_the_start_is_not_visited_again(how: str) -> None:
    command = [sys.executable, "-c", CREATED, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    n_full, most = map(int, ended.stdout.split())
    assert n_full > 3
    assert most < 30_000
