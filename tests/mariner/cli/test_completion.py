"""Shell completion, as bash asks for it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.shell import Shell

SHELL = Shell({})


async def test_a_real_shell_completes(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    result = await SHELL.run("completion", "bash", "--install", XDG_DATA_HOME=str(folder))
    path = folder / "bash-completion" / "completions" / "mariner"
    assert (result.code, result.stdout) == (0, f"installed: {path}\n")
    programs = Path(sys.executable).parent  # the environment may not be activated
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    code = (
        f"source {path}; COMP_WORDS=(mariner sta); COMP_CWORD=1;"
        ' _mariner_completion mariner; echo "${COMPREPLY[@]}";'
        " COMP_WORDS=(mariner status --w); COMP_CWORD=2; COMPREPLY=();"
        ' _mariner_completion mariner; echo "${COMPREPLY[@]}"; complete -p mariner'
    )
    process = await asyncio.create_subprocess_exec(
        *("bash", "--norc", "-c", code), stdout=asyncio.subprocess.PIPE, env=environment
    )
    output, _ = await process.communicate()
    lines = output.decode().splitlines()
    assert lines == ["status", "--watch", "complete -o nosort -F _mariner_completion mariner"]


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("zsh", "data/zsh/site-functions/_mariner"),
        ("fish", "conf/fish/completions/mariner.fish"),
    ],
)
async def test_of_other_shells(tmp_path: Path, shell: str, place: str) -> None:
    folders = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "conf")}
    result = await SHELL.run("completion", "--install", SHELL=f"/usr/bin/{shell}", **folders)
    lines = result.stdout.splitlines()
    assert lines[0] == f"installed: {tmp_path / place}"
    assert [f"fpath=({tmp_path}/data/zsh/site-functions $fpath)" in i for i in lines[1:]] == (
        [True] if shell == "zsh" else []
    )
    printed = await SHELL.run("completion", shell)
    assert (tmp_path / place).read_text() + "\n" == printed.stdout
    assert f"_MARINER_COMPLETE={shell}_complete" in printed.stdout


async def test_errors(tmp_path: Path) -> None:
    result = await SHELL.run("completion", SHELL="/bin/tcsh")
    assert result.code == 2
    assert result.stderr == "mariner: error: SHELL: 'tcsh': expected one of bash, zsh, fish\n"
    file = tmp_path / "file"
    file.touch()
    result = await SHELL.run("completion", "fish", "--install", XDG_CONFIG_HOME=str(file))
    assert result.code == 1
    path = file / "fish" / "completions" / "mariner.fish"
    assert result.stderr == f"mariner: error: {path}: Not a directory\n"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208
