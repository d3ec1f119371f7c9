"""The tree of types: its order, what is seen of it, and its bounds."""

from collections.abc import Iterable

import pytest

from eventer_bridge.model import JsonPayload
from mariner_console import limits
from mariner_console.type_tree import Node, TypeTree
from tests.console.support import event


def tree_of(paths: Iterable[str]) -> TypeTree:
    tree = TypeTree()
    for path in paths:
        tree.put(event(tuple(path.split("/")), JsonPayload.of(path)))
    return tree


def segments(nodes: Iterable[Node]) -> list[str]:
    return [i.segment for i in nodes]


def test_nodes_are_seen_below_what_is_expanded() -> None:
    tree = tree_of(["b/d", "a", "b/c", "b/c/e"])
    [a, b] = tree.root.sorted_children()
    assert segments(tree.visible([])) == ["", "a", "b"]
    assert segments(tree.visible([b.id])) == ["", "a", "b", "c", "d"]
    assert (tree.root.n_types, a.n_types, b.n_types) == (4, 1, 3)
    assert a.leaf is not None
    assert a.leaf.text == '"a"'
    assert b.leaf is None
    assert tree.find(b.id) is b
    assert tree.find(99) is None
    tree.put(event(("aa",), JsonPayload.of(1)))
    assert segments(tree.root.sorted_children()) == ["a", "aa", "b"]


def test_numbers_are_in_their_order() -> None:
    names = ["sensor10", "sensor2", "sensor", "a10b2", "a10b10", "a9", "007", "7", "12" * 3_000]
    tree = tree_of(names)
    expected = ["007", "7", "12" * 3_000, "a9", "a10b2", "a10b10", "sensor", "sensor2", "sensor10"]
    assert segments(tree.root.sorted_children()) == expected
    assert [i.type[0] for i in tree.search("sens")] == ["sensor", "sensor2", "sensor10"]


def test_a_node_is_found_by_its_type() -> None:
    deep = tuple(map(str, range(limits.MAX_DEPTH + 2)))
    tree = tree_of(["a/b/c", "/".join(deep)])
    node = tree.at(("a", "b"))
    assert node is not None
    assert segments(node.path()) == ["a", "b"]
    assert tree.at(("a", "c")) is None
    found = tree.at(deep)
    assert found is not None
    assert found.leaf is not None
    assert found.leaf.type == deep


def test_the_last_event_of_a_type_is_replaced() -> None:
    tree = tree_of(["a/b"])
    assert tree.put(event(("a", "b"), JsonPayload.of(2), s=5))
    assert tree.root.n_types == 1
    [leaf] = tree.search("A/B")
    assert (leaf.text, leaf.timestamp.s) == ("2", 5)


def test_the_empty_type_and_empty_segments() -> None:
    tree = TypeTree()
    for event_type in ((), ("",), ("", "")):
        assert tree.put(event(event_type))
    assert tree.root.n_types == 3


def test_a_million_types_are_cut_and_searched() -> None:
    tree = TypeTree()
    for i in range(limits.MAX_TYPES + 10):
        tree.put(event(("plant", str(i), "power")))
        if tree.is_cut:
            break
    assert tree.root.n_types == limits.MAX_TYPES
    assert not tree.put(event(("plant", "one more")))
    assert tree.put(event(("plant", "7", "power"), s=9))  # it is there
    [plant] = tree.root.sorted_children()
    assert len(plant.sorted_children()) == limits.MAX_CHILDREN
    everything = range(limits.MAX_TREE_NODES)
    assert len([*tree.visible(everything)]) <= limits.MAX_NODES
    assert len(tree.search("power")) == limits.MAX_TYPES
    assert len(tree.search("/1999/")) == 1
    assert tree.search("none") == []


@pytest.mark.parametrize(
    "event_type", [("a",) * 100_000, ("x" * (limits.MAX_TREE_CHARACTERS + 1),)]
)
def test_one_type_cannot_fill_it(event_type: tuple[str, ...]) -> None:
    tree = TypeTree()
    tree.put(event(event_type))
    depth, node = 0, tree.root
    while node.children:
        depth, node = depth + 1, node.sorted_children()[0]
    assert depth <= limits.MAX_DEPTH
    assert tree.is_cut is (depth == 0)
