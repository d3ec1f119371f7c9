"""The wheels of this checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent

PLACES: Final = {"mariner_gateway": ".", "mariner_client": "mariner/client"}
"""Where each distribution is built, by the name that its files begin with."""

QUICKLY: Final = {"CFLAGS": "-O0"}
"""Variables with which everything is compiled in a quarter of the time, and is slower."""


def copy_source(folder: Path) -> Path:
    """Copy the files that git knows to a folder; returns it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(
    source: Path, kind: str, name: str = "mariner_gateway", **variables: str
) -> tuple[Path, str]:
    """Build a distribution beside a source tree, with variables of the environment.

    Args:
        source: the tree.
        kind: ``wheel`` or ``sdist``.
        name: one of :data:`PLACES`.
        variables: added to the environment of the build.

    Returns:
        The file, and what the build printed.
    """
    suffix = {"wheel": "whl", "sdist": "tar.gz"}[kind]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "build", f"--{kind}", "--no-isolation"),
            *("--outdir", str(source.parent), str(source / PLACES[name])),
        ],
        env={**os.environ, **QUICKLY, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    [file] = source.parent.glob(f"{name}-*.{suffix}")
    return file, done.stdout


def build_wheels(folder: Path) -> tuple[Path, Path]:
    """Build the wheels of the files that git knows, in a folder of its own: gateway, client."""
    source = copy_source(folder / "source")
    gateway, _ = build(source, "wheel")
    client, _ = build(source, "wheel", "mariner_client")
    return gateway, client
