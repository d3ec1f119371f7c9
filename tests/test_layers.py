"""Who may import whom: no circles, and rooms of which the lower ones know nothing of the upper."""

import copy
import sys
from typing import Final

import grimp
import pytest

PACKAGES: Final = ("eventer_bridge", "mariner", "mariner_certs", "mariner_spark")

# upper first; those of a line know nothing of each other, unless a ":" joins them
LAYERS: Final = {
    "eventer_bridge": (
        "remote",
        "eventer rsb",
        "core : modules",
        "chatter",
        "net backends",
        "payloads subscription tls",
        "slices",
        "excerpts moments resources",
        "model",
        "limits errors",
    ),
    "mariner": ("cli", "gateway", "server client", "wire", "limits errors version"),
    "mariner_spark": (
        "cli",
        "reports",
        "lake",
        "reader",
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
    layers = [grimp.Layer("mariner_spark"), grimp.Layer("mariner"), grimp.Layer("eventer_bridge")]
    assert graph.find_illegal_dependencies_for_layers(layers) == set()


def test_few_modules_stand_outside_the_rooms(graph: grimp.ImportGraph) -> None:
    loose = {
        package: [i for i in graph.find_children(package) if not graph.find_children(i)]
        for package in ("eventer_bridge", "mariner")
    }
    assert len(loose["eventer_bridge"]) <= 10, loose
    assert len(loose["mariner"]) <= 4, loose
