"""``python -m tests.pythons``: the tests without Spark, on each other supported Python here.

Supported is what the classifiers of ``pyproject.toml`` promise. Only Pythons are taken that
really start and can make virtual environments: a shim on the PATH may stand for nothing.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

_CLASSIFIER: Final = "Programming Language :: Python :: "
_CHECK: Final = "import ensurepip, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
_CHECK_TIMEOUT_S: Final = 30.0


def supported() -> list[str]:
    """Versions that are promised, such as ``3.11``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [i.removeprefix(_CLASSIFIER) for i in project["classifiers"] if _CLASSIFIER in i]


def find(version: str, folders: Iterable[Path]) -> Path | None:
    """An interpreter of a version that works, or None."""
    for folder in folders:
        python = folder / f"python{version}"
        if not python.is_file():
            continue
        try:
            done = subprocess.run(
                [python, "-c", _CHECK],
                capture_output=True,
                text=True,
                timeout=_CHECK_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if (done.returncode, done.stdout.strip()) == (0, version):
            return python
    return None


def folders() -> Iterator[Path]:
    """Where Pythons are: on the PATH, and all that pyenv has, newest first."""
    yield from (Path(i) for i in os.get_exec_path())
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/*/bin"), reverse=True)


def main() -> int:
    """Run the tests on each; tell which were not here; 1 if any failed."""
    failed = []
    for version in supported():
        if version == "{}.{}".format(*sys.version_info):
            continue
        python = find(version, folders())
        if python is None:
            print(f"Python {version}: not here, left out", flush=True)
            continue
        print(f"Python {version}: {python}", flush=True)
        command = ["make", "test-without-spark", f"PYTHON={python}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(version)
    if failed:
        print(f"tests failed on Python {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
