"""Which Pythons the tests find on a machine."""

import sys
from pathlib import Path

from tests import pythons

VERSION = "{}.{}".format(*sys.version_info)


def fake(folder: Path, script: str) -> Path:
    """A folder with a program of the name of this Python."""
    folder.mkdir()
    program = folder / f"python{VERSION}"
    program.write_text(script)
    program.chmod(0o755)
    return folder


def test_the_one_that_runs_these_tests_is_supported() -> None:
    assert VERSION in pythons.supported()


def test_only_what_starts_and_is_that_version_is_taken(tmp_path: Path) -> None:
    broken = [
        tmp_path / "absent",
        fake(tmp_path / "shim", "#!/bin/sh\necho 'command not found' >&2\nexit 127\n"),
        fake(tmp_path / "no_program", "\0"),
        fake(tmp_path / "other", "#!/bin/sh\necho 2.7\n"),
    ]
    assert pythons.find(VERSION, broken) is None
    good = fake(tmp_path / "good", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert pythons.find(VERSION, [*broken, good]) == good / f"python{VERSION}"
