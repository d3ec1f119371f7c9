"""``mariner token``: what it prints is what a configuration takes."""

import pytest
from click.testing import CliRunner

from eventer_bridge.core import tokens
from mariner.cli import main


def test_a_new_token_is_printed_once_with_its_hash() -> None:
    results = [CliRunner().invoke(main, ["token", "new"]) for _ in range(2)]
    assert [(i.exit_code, i.stderr) for i in results] == [(0, "")] * 2
    [[made, line], [other, _]] = [i.stdout.splitlines() for i in results]
    assert made != other
    assert line == f"token: {tokens.sha256_text(made)}"
    assert made not in line


def test_the_hash_of_a_chosen_token() -> None:
    for text in ("hunter2\n", "hunter2\r\n", "hunter2", "\ufeffhunter2\n"):
        result = CliRunner().invoke(main, ["token", "hash"], input=text)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "hunter2" not in result.stdout
        [found] = tokens.read(result.stdout.removeprefix("token: ").strip(), "t")
        assert found.hash.salt is not None
        assert tokens.scrypt("hunter2", found.hash.salt) == found.hash.digest


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("\n", "empty"),
        ("a\tb\n", "has a tab (U+0009)"),
        ("hunter2 \n", "ends with a blank (U+0020)"),
        (b"\xff\xfeh\x00", "not UTF-8 text"),
    ],
)
def test_no_token_to_hash(text: str | bytes, problem: str) -> None:
    result = CliRunner().invoke(main, ["token", "hash"], input=text)
    assert (result.exit_code, result.stdout) == (2, "")
    line = f"mariner: error: standard input: {problem}, expected a token in one line\n"
    assert result.stderr == line


def test_a_token_is_not_cut_off() -> None:
    result = CliRunner().invoke(main, ["token", "hash"], input="a" * 4097)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "has more than 4096 bytes" in result.stderr


def test_a_token_is_not_taken_from_the_command_line() -> None:
    result = CliRunner().invoke(main, ["token", "hash", "hunter2"])
    assert result.exit_code == 2
