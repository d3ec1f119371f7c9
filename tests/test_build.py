"""The compiled module: in editable installs where there is a compiler, else left out.

``test_wheel.py`` looks for it in the wheel.
"""

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel import QUICKLY, build, copy_source

FOLDER = Path("eventer_bridge", "packed")
COMPILED = str(FOLDER / f"_packed{sysconfig.get_config_var('EXT_SUFFIX')}")
DYNAMIC_SECTION = 6  # ELF: numbers of a kind of section, and of entries in it
FLAGS, FLAGS_1 = 30, 0x6FFFFFFB
BIND_NOW, NOW = 8, 1
FALSE = shutil.which("false") or "false"
IMPORT = "from eventer_bridge import packed; print(packed.IS_COMPILED, packed.__file__)"


def can_compile() -> bool:
    """Whether there are a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(compiler.split()[0]) is not None and headers.is_file()


needs_compiler = pytest.mark.skipif(
    not can_compile(), reason="there is no C compiler or no Python.h (Debian: gcc, python3-dev)"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return copy_source(tmp_path / "source")


def check_import(folder: Path, *, is_compiled: bool) -> None:
    """What is in a folder is found, before the checkout, and is compiled or not."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORT],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(is_compiled), str(folder / FOLDER / "__init__.py")]


def check_wheel(wheel: Path, source: Path, *, is_compiled: bool) -> None:
    archive = zipfile.ZipFile(wheel)
    names = {name for name in archive.namelist() if Path(name).parent == FOLDER}
    assert {str(FOLDER / "_packed.pyx"), str(FOLDER / "_packed.pyi")} <= names
    assert {name for name in names if name.endswith((".so", ".c"))} == (
        {COMPILED} if is_compiled else set()
    )
    assert wheel.name.endswith("-py3-none-any.whl") is not is_compiled
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
    assert b"Root-Is-Purelib: true" in archive.read(metadata)  # as of the client, in its folder
    shutil.unpack_archive(wheel, source, "zip")  # to what the client has
    check_import(source, is_compiled=is_compiled)


def made_in(source: Path) -> set[str]:
    """What a build left in the source tree."""
    return {str(i.relative_to(source)) for kind in ("*.so", "*.c") for i in source.rglob(kind)}


def build_editable(source: Path, **variables: str) -> str:
    """What an editable install does in the source tree; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel:editable", "--hooks-only"],
        cwd=source,
        env={**os.environ, **QUICKLY, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def warnings(output: str) -> list[str]:
    return [line for line in output.splitlines() if "eventer_bridge.packed is not compiled" in line]


def is_bound_at_once(module: Path) -> bool:
    """Whether an ELF file has the linker's flag of ``-z now``."""
    data = module.read_bytes()
    assert data[:6] == b"\x7fELF\2\1", "not of 64 bits, little-endian"
    [sections] = struct.unpack_from("<Q", data, 40)
    entry_bytes, n_sections = struct.unpack_from("<HH", data, 58)
    for i in range(n_sections):
        at = sections + i * entry_bytes
        if struct.unpack_from("<I", data, at + 4) == (DYNAMIC_SECTION,):
            begin, size = struct.unpack_from("<QQ", data, at + 24)
            found = dict(struct.iter_unpack("<QQ", data[begin : begin + size]))
            return bool(found.get(FLAGS, 0) & BIND_NOW or found.get(FLAGS_1, 0) & NOW)
    return False


def test_without_a_compiler_a_wheel_is_pure(source: Path) -> None:
    wheel, output = build(source, "wheel", CC=FALSE)
    [warning] = warnings(output)
    assert FALSE in warning
    assert warning.endswith(": registrations are slower")
    check_wheel(wheel, source, is_compiled=False)


@needs_compiler
def test_an_editable_install_compiles_in_place(source: Path) -> None:
    output = build_editable(source)
    assert not warnings(output)
    assert "not hardened" not in output
    assert made_in(source) == {COMPILED}
    check_import(source, is_compiled=True)
    if sys.platform == "linux" and struct.calcsize("P") == 8 and sys.byteorder == "little":
        assert is_bound_at_once(source / COMPILED)
        assert b"__stack_chk_fail" in (source / COMPILED).read_bytes()


@needs_compiler
@pytest.mark.parametrize("flag", ["-fstack-protector-strong", "-Wl,-z,now"])
def test_a_compiler_that_lacks_a_flag_builds_without(source: Path, flag: str) -> None:
    (source / FOLDER / "_packed.pyx").write_text("made = 42\n")  # to compile all takes a minute
    compiler = source.parent / "compiler"
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compiler.write_text(
        f'#!/bin/sh\ncase " $* " in *" {flag} "*) exit 1;; esac\nexec {command} "$@"\n'
    )
    compiler.chmod(0o755)
    output = build_editable(source, CC=str(compiler))
    assert not warnings(output)
    assert "warning: eventer_bridge.packed is not hardened: " in output
    loaded = [sys.executable, "-P", "-c", "import _packed; print(_packed.made, _packed.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(source / FOLDER)}
    printed = subprocess.check_output(loaded, env=environment, text=True)
    assert printed.split() == ["42", str(source / COMPILED)]


def test_an_older_module_does_not_stay_without_a_compiler(source: Path) -> None:
    other = str(FOLDER / "_packed.cpython-39-x86_64-linux-gnu.so")  # of another interpreter
    for name in (COMPILED, other):
        (source / name).write_bytes(b"older")
    assert len(warnings(build_editable(source, CC=FALSE))) == 1
    assert made_in(source) == {other}
    check_import(source, is_compiled=False)


def test_a_source_distribution_has_what_is_compiled(source: Path) -> None:
    (source / COMPILED).write_bytes(b"of this machine")
    sdist, _ = build(source, "sdist")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", *(str(FOLDER / f"_packed.{i}") for i in ("pyx", "pyi"))} <= names
    assert "mariner/client/pyproject.toml" in names  # says what the wheel leaves out
    assert COMPILED not in names
