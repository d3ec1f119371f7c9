"""Files of configurations: what hat-json reads is read alike, what is hostile is refused."""

import json
import os
import re
import time
from pathlib import Path
from typing import Final

import pytest
from hat import json as hat_json

from eventer_bridge.errors import ConfigurationError
from mariner import limits
from mariner.gateway.config_file import decode

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = [
    path
    for folder in ("deploy", "schemas")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
    if not re.search("^---", path.read_text(), re.MULTILINE)  # several documents, of Kubernetes
]
DEPTH: Final = limits.MAX_CONFIGURATION_DEPTH


def problem(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        decode(path)
    assert time.process_time() - began < 10  # what is not bounded takes minutes
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_are_what_hat_json_reads(path: Path) -> None:
    # as texts, so that 1, 1.0 and True differ
    assert repr(decode(path)) == repr(hat_json.decode_file(path))
    assert len(EXAMPLES) > 8


@pytest.mark.parametrize(
    "text",
    [
        "{a: yes, b: No, c: on, d: off, e: y, f: ~, g: null, h: '', i: , j: TRUE}",
        "[017, 0o17, 08, 0x1F, 0b11, 1_000, 1:30, 1:30.5, -0, +5, 1e3, 1.0e+3, .5, .inf, -.INF]",
        "[!!str 5, !!float 1, !!int '5', ! 5, 'it''s', \"\\u00e4\\n\", {}, []]",
        "a: |+\n  x\n\n  y\n\nb: >-\n  x\n  y\nc: x\n  y # comment\n",
        "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}\nd: [*a, *a]\ne: {'<<': 1}",
        "%YAML 1.1\n---\n{a: 1}\n...\n",
        "[a,\r\nb]\r\n",
        '{"a": "\U0001f600", "b": [1, 2.50, -1e-7, true, null]}',
    ],
)
def test_values_are_those_of_hat_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(text.encode())
    expected = hat_json.decode_file(path)
    assert repr(decode(path)) == repr(expected)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert repr(decode(path)) == repr(expected)


def test_json_and_toml_are_those_of_hat_json(tmp_path: Path) -> None:
    for name, text in (
        ("a.json", '{"a": [1, 1.0, -1e400, NaN, "\\u0000", {}, true]}'),
        (
            "a.toml",
            'a.b = 1\n"" = [0x1F, 1_000, inf, """x\ny""", {c = true}]\n[[d]]\n[[d]]\nx = 1\n',
        ),
    ):
        (tmp_path / name).write_text(text)
        assert repr(decode(tmp_path / name)) == repr(hat_json.decode_file(tmp_path / name))


def test_moments_become_texts(tmp_path: Path) -> None:
    for name, text in (
        ("a.yaml", "{a: 2020-01-31, b: [2020-01-31 12:00:00Z]}"),
        ("a.toml", "a = 2020-01-31\nb = [2020-01-31T12:00:00Z, 07:30:00]\n"),
    ):
        (tmp_path / name).write_text(text)
        found = decode(tmp_path / name)
        assert found["a"] == "2020-01-31"
        assert found["b"][0] == "2020-01-31T12:00:00+00:00"
        assert json.dumps(found)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "clients: [1]\nb: 2\nclients: []\n", "line 3, column 1: clients: the key is th"),
        ("a.yaml", "a: {x: 1, 'x': 2}", "line 1, column 11: x: the key is there twice"),
        ("a.yaml", "- &a {x: 1}\n- {<<: *a, <<: *a}", "line 2, column 12: <<: the key is there tw"),
        ("a.yaml", "- {token:hunter2, token:hunter2}", "line 1, column 19: ***: the key is there"),
        ("a.json", '{"clients": [1], "clients": []}', "clients: the key is there twice"),
        (
            "a.json",
            '[{"name": "a"}, {"name": "b", "token": 1, "token": 1}]',
            "token: the key is there twice, in the object with the name 'b'",
        ),
        ("a.toml", "a = 1\na = 2\n", "Cannot overwrite a value (at line 2, column 6)"),
        ("a.yaml", "on: 1", "line 1, column 1: a key is bool to YAML, expected a text, in quotes"),
        ("a.yaml", "? [a]\n: 1", "line 1, column 3: a key is no text to YAML, expected a text"),
        ("a.yaml", "a: &a [*a]", "line 1, column 4: an alias of what it is in"),
        ("a.yaml", "a: !!set {x}", "line 1, column 4: a tag of what JSON does not have"),
        ("a.yaml", "a: !!binary aGk=", "line 1, column 4: a tag of what JSON does not have"),
        ("a.yaml", "a: !hunter2 1", "line 1, column 4: could not determine a constructor"),
        ("a.yaml", "a: !!bool hunter2", "a value does not fit its tag"),
        ("a.yaml", "a: !!timestamp hunter2", "a value does not fit its tag"),
        ("a.yaml", "a: !!int hunter2", "a date or number is not valid: "),
        ("a.yaml", "", "empty, expected an object"),
        ("a.yaml", "a: 1\n--- \nb: 1", "line 2, column 1: but found another document"),
        ("a.yaml", b"\xff\xfea\x00", "*** codec can't decode byte 0xff in position 0"),
    ],
)
def test_what_is_ambiguous_or_no_json(
    tmp_path: Path, name: str, text: str | bytes, expected: str
) -> None:
    found = problem(tmp_path / name, text)
    assert found.startswith(expected)
    assert "hunter2" not in found


def nested(n: int) -> str:
    return "[" * n + "1" + "]" * n


def bomb(n: int) -> str:
    """Ten times as many with each line."""
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, n)]
    return "\n".join(["a0: &a0 [1]", *lines])


def chain(n: int) -> str:
    """Deep only by its aliases."""
    return "\n".join(["- &a0 [1]", *(f"- &a{i} [*a{i - 1}]" for i in range(1, n))])


def merges(n: int) -> str:
    lines = [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, n)]
    return "\n".join(["a0: &a0 {x: 1}", *lines])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", nested(DEPTH + 1), "nested more than 100 deep"),
        ("a.yaml", "[" * 1_000_000, "line 1, column 101: nested more than 100 deep"),
        ("a.yaml", "{a: " * 200_000, "nested more than 100 deep"),
        ("a.yaml", "- " * 200_000, "nested more than 100 deep"),
        ("a.yaml", "? " * 200_000, "nested more than 100 deep"),
        ("a.yaml", chain(200), "nested more than 100 deep"),
        ("a.yaml", bomb(9), "more than 500000 values"),
        ("a.yaml", merges(9), "more than 500000 values"),
        ("a.yaml", "a: 1" + ":1" * 200_000, "line 1, column 4: a number of more than 100 digits"),
        ("a.yaml", f"a: 0x{'f' * 5_000}", "line 1, column 4: a number of more than 100 digits"),
        ("a.yaml", "".join(f"%TAG !{i}! x\n" for i in range(101)), "more than 100 directives"),
        ("a.json", nested(DEPTH + 1), "nested more than 100 deep"),
        ("a.json", "[" * 1_000_000, "nested more than 100 deep"),
        ("a.json", '{"a":' * 1_000_000, "nested more than 100 deep"),
        ("a.json", f"[{'1,' * 500_001}1]", "more than 500000 values"),
        ("a.json", "1" * 101, "a number of more than 100 digits"),
        ("a.json", "1" * 5_000, "a date or number is not valid: Exceeds the limit (4300 digits)"),
        ("a.toml", f"a = {nested(DEPTH)}", "nested more than 100 deep"),
        ("a.toml", f"a = {'[' * 1_000_000}", "nested more than 100 deep"),
        ("a.toml", f"a{'.a' * 900} = 1", "nested more than 100 deep"),
        ("a.toml", f"a{'.a' * 1_000_000} = 1", "a line with more than 1000 dots"),
        ("a.toml", f"a = 0x{'f' * 5_000}", "a number of more than 100 digits"),
        ("a.yaml", "#" * (8 << 20) + "\n", "has 8388609 bytes, at most 8388608 are read"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_exceeds_a_bound(tmp_path: Path, name: str, text: str, expected: str) -> None:
    assert expected in problem(tmp_path / name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", nested(DEPTH)),
        ("a.yaml", chain(DEPTH - 1)),
        ("a.yaml", bomb(6)),
        ("a.json", nested(DEPTH)),
        ("a.toml", f"a = {nested(DEPTH - 1)}"),
        ("a.yaml", f"a: {'9' * 100}"),
    ],
)
def test_what_is_just_within(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert repr(decode(path)) == repr(hat_json.decode_file(path))


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match=r"a\.yaml: is a FIFO, expected a regular file"):
        decode(path)
