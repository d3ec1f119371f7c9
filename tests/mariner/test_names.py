"""What an application imports from ``mariner``, and what that costs the others."""

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mariner
from eventer_bridge import model, tls
from mariner import client, errors

ROOT = Path(__file__).parents[2]


def run_python(program: str) -> set[str]:
    command = (sys.executable, "-c", program)
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(result.stdout.split())


def test_every_name_is_there() -> None:
    for name in mariner.__all__:
        assert getattr(mariner, name) is not None
    assert set(mariner.__all__) <= set(dir(mariner))
    assert mariner.Event is model.Event
    assert mariner.connect is client.connect
    assert mariner.GapError is errors.GapError
    assert mariner.tls is tls
    assert set(client.__all__) <= set(mariner.__all__)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"^module 'mariner' has no attribute 'evnet'$"):
        _ = mariner.evnet


def test_types_are_those_of_the_names() -> None:
    """The block for type checkers says where each name is: it is that at run time, too."""
    tree = ast.parse((ROOT / "mariner" / "__init__.py").read_text(encoding="utf-8"))
    [block] = [i for i in tree.body if isinstance(i, ast.If)]
    places: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        places |= {i.name: str(node.module) for i in node.names}
    assert places.keys() == set(mariner.__all__) - {"__version__"}
    for name, place in places.items():
        assert getattr(mariner, name) is pkgutil.resolve_name(f"{place}:{name}"), name


def test_it_costs_nothing_before_it_is_used() -> None:
    before = run_python("import sys, importlib, typing; print(*sys.modules)")
    after = run_python("import sys, mariner; print(*sys.modules)")
    assert after - before == {"mariner", "mariner.version"}
    used = run_python("import sys, mariner; mariner.Event; print(*sys.modules)")
    assert "eventer_bridge.model" in used
    assert not {"mariner.client", "sqlite3"} & used  # of the clients


def test_all_is_imported_at_once() -> None:
    program = "from mariner import *; print(connect.__name__, Event.__name__, __version__)"
    assert run_python(program) == {"connect", "Event", mariner.__version__}


def examples() -> Iterator[str]:
    """Every example for applications: of documents, of docstrings of the client, of the demo."""
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        yield from re.findall(
            r"^```python\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
    for path in (ROOT / "mariner/sync.py", *(ROOT / "mariner" / "client").glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            if isinstance(node, documented):
                yield ast.get_docstring(node) or ""
    for name in ("counter", "machine"):
        yield (ROOT / "deploy" / "demo" / f"{name}.py").read_text("utf-8")


def test_no_example_needs_more_than_mariner() -> None:
    found = [*examples()]
    assert sum("mariner." in i for i in found) >= 8
    assert [i for i in found if "eventer_bridge" in i] == []
