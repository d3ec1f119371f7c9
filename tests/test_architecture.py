"""The shape of the code: who may import whom, names that stand for one thing, short functions."""

import ast
import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import grimp
import pytest

PACKAGES: Final = (
    "eventer_bridge",
    "mariner",
    "mariner_certs",
    "mariner_console",
    "mariner_spark",
)

# upper first; those of a line know nothing of each other, unless a ":" joins them
LAYERS: Final = {
    "eventer_bridge": (
        "remote group",
        "eventer rsb",
        "core : modules",
        "chatter",
        "net backends",
        "control",
        "payloads subscription tls",
        "slices memory",
        "packed",
        "moments resources",
        "model",
        "limits errors",
    ),
    "mariner": ("cli", "gateway", "sync", "server client", "wire", "limits errors version"),
    "mariner_console": (
        "cli",
        "server",
        "page",
        "gate",
        "door",
        "watcher type_tree",
        "view",
        "asking config texts",
        "limits",
    ),
    "mariner_spark": (
        "cli",
        "reports",
        "reader",
        "lake",
        "source",
        "schema",
        "errors limits",
    ),
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def circle(graph: grimp.ImportGraph) -> list[str]:
    """Modules that import each other, also for types only; empty where there is no circle."""
    state: dict[str, bool] = {}  # whether it is done

    def find(module: str, way: list[str]) -> list[str]:
        if state.get(module):
            return []
        if module in state:
            return [*way[way.index(module) :], module]
        state[module] = False
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if found := find(imported, [*way, module]):
                return found
        state[module] = True
        return []

    return next((found for i in sorted(graph.modules) if (found := find(i, []))), [])


def test_there_is_no_circle(graph: grimp.ImportGraph) -> None:
    assert sys.getrecursionlimit() > len(graph.modules)
    assert circle(graph) == []
    with_circle = copy.deepcopy(graph)
    with_circle.add_import(importer="eventer_bridge.errors", imported="mariner.cli.serve")
    assert len(circle(with_circle)) > 2


@pytest.mark.parametrize("package", LAYERS)
def test_the_lower_know_nothing_of_the_upper(graph: grimp.ImportGraph, package: str) -> None:
    layers = [
        grimp.Layer(*(i for i in layer.split() if i != ":"), independent=":" not in layer)
        for layer in LAYERS[package]
    ]
    broken = graph.find_illegal_dependencies_for_layers(layers, containers={package})
    assert [f"{i.importer} -> {i.imported}" for i in broken] == []


def test_what_is_below_knows_nothing_of_what_is_above(graph: grimp.ImportGraph) -> None:
    upper = grimp.Layer("mariner_console", "mariner_spark", independent=True)
    layers = [upper, grimp.Layer("mariner"), grimp.Layer("eventer_bridge")]
    assert graph.find_illegal_dependencies_for_layers(layers) == set()


def test_few_modules_stand_outside_the_rooms(graph: grimp.ImportGraph) -> None:
    loose = {
        package: [i for i in graph.find_children(package) if not graph.find_children(i)]
        for package in ("eventer_bridge", "mariner")
    }
    assert len(loose["eventer_bridge"]) <= 10, loose
    assert len(loose["mariner"]) <= 5, loose


# --- what a newcomer trips over -------------------------------------------------------------


ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = [
    path
    for package in (
        "eventer_bridge",
        "mariner",
        "mariner_console",
        "certs",
        "spark",
        "deploy",
        "tests",
    )
    for path in sorted((ROOT / package).rglob("*.py"))
]


class Shape(NamedTuple):
    """Names of public classes of a module, and what is said of its long functions."""

    classes: list[str]
    long: list[str]


one_worker: Final = pytest.mark.xdist_group("shapes")


@pytest.fixture(scope="module")
def shapes() -> dict[Path, Shape]:
    """Of all modules: it takes seconds, so that one worker has the tests of them."""
    return {path: shape_of(ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES}


def shape_of(module: ast.Module) -> Shape:
    classes = [i.name for i in module.body if isinstance(i, ast.ClassDef)]
    n_lines = [(i, (i.end_lineno or sys.maxsize) - i.lineno + 1) for i in functions_of(module)]
    return Shape(
        [i for i in classes if not i.startswith("_")],
        [f"{function.name} has {n}" for function, n in n_lines if n > 70],
    )


def functions_of(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those below a node; expressions, which are most of a tree, have none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            yield from functions_of(child)


@one_worker
def test_a_public_class_name_stands_for_one_thing(shapes: dict[Path, Shape]) -> None:
    places: dict[str, list[str]] = {}
    for path, shape in shapes.items():
        if not path.is_relative_to(ROOT / "tests"):
            for name in shape.classes:
                places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@one_worker
def test_no_function_is_longer_than_70_lines(shapes: dict[Path, Shape]) -> None:
    long = [f"{path.relative_to(ROOT)}: {i}" for path, shape in shapes.items() for i in shape.long]
    assert long == []
