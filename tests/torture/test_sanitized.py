"""The compiled module under AddressSanitizer and UBSan: what it reads and writes is its own.

Memory is as large as was counted (``HAS_SPARE``), so that one byte too many is noticed.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from hatch_build import compile_module
from tests.support.wheel import ROOT
from tests.test_build import can_compile

N_INPUTS: Final = int(os.environ.get("SANITIZED_INPUTS", "3_000"))
"""Of each fuzz target; ``make torture`` tries more."""

SANITIZERS: Final = "-fsanitize=address,undefined"
FLAGS: Final = (
    SANITIZERS, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1", "-w",
    "-DHAS_SPARE=0",
)  # fmt: skip
OPTIONS: Final = {
    "PYTHONMALLOC": "malloc",  # each object is of its own for AddressSanitizer, too
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "DIFFERENTIAL_MESSAGES": "500",
    "EXAMPLES": "15",
}


def runtime() -> str:
    """What has to be loaded before Python is.

    Skips the test where there is no gcc that has it.
    """
    gcc = shutil.which("gcc")
    if gcc is None or not can_compile():
        pytest.skip("there is no gcc, or no Python.h (Debian: gcc, python3-dev)")
    asked = [gcc, "-print-file-name=libasan.so"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():  # else it tells the name alone
        pytest.skip("gcc has no AddressSanitizer (Debian: libgcc-dev of its version)")
    return path


@pytest.mark.slow
def test_no_memory_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preloaded = runtime()
    monkeypatch.setenv("CC", "gcc")
    source = ROOT / "eventer_bridge" / "packed" / "_packed.pyx"
    module = compile_module(source, tmp_path, FLAGS, [SANITIZERS])
    seed = random.SystemRandom().randrange(1 << 32)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.torture.sanitized_process"),
            *(str(module), str(N_INPUTS), str(seed)),
        ],
        cwd=ROOT,
        env={**os.environ, **OPTIONS, "LD_PRELOAD": preloaded},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-20_000:]}"
