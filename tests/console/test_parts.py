"""What panels are made of."""

from nicegui import Client, ui

from eventer_bridge.model import Event, JsonPayload, format_event_id
from mariner_console import texts
from mariner_console.page.parts import TextTable
from tests.console.support import event


async def test_the_text_of_an_open_row_is_made_when_it_changes() -> None:
    made: list[Event] = []

    def detail(item: Event) -> str:
        made.append(item)
        return texts.of_event(item)

    first, other = event(("a",), session=1), event(("b",), session=2)
    changed = event(("a",), JsonPayload.of(1), session=1)
    with Client(ui.page("/rows")):
        table = TextTable({"Id": lambda i: format_event_id(i.id)}, detail=detail)
    table.set([first])
    table.pick("1/1/1")
    for items in ([first], [other, first], [changed], [other]):  # as it is refreshed each second
        table.set(items)
        shown = [i["detail"] for i in table._table.rows]
        assert shown == ["" if i is other else texts.of_event(i) for i in items]
    assert [*map(id, made)] == [id(first), id(changed)]
