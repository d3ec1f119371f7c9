"""What is mutated, and the tests that are run for it, exist."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_its_files_exist() -> None:
    conf = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    deselected = [
        i.removeprefix("--deselect=").partition("::")[0]
        for i in conf["pytest_add_cli_args"]
        if i.startswith("--deselect=")
    ]
    paths = conf["only_mutate"] + conf["pytest_add_cli_args_test_selection"] + deselected
    assert [i for i in paths if not (ROOT / i).exists()] == []
