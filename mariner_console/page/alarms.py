"""Alarms of the module ``threshold`` that are raised."""

from mariner_console import texts
from mariner_console.alarms import Alarms
from mariner_console.page.parts import TextTable, card, note


class AlarmsPanel:
    """The panel."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        with card("Alarms that are raised"):
            columns = {"type": "Type", "since": "Since (UTC)", "value": "Value", "limit": "Limit"}
            self._table = TextTable(columns, key="type", empty="No alarm is raised.")
            self._left_out = note("")
            note("Those of the module threshold that this client may see; the newest first.")

    async def refresh(self) -> None:
        """Show what is raised now."""
        self._table.set(
            [
                {
                    "type": texts.of_type(i.type),
                    "since": texts.of_moment(i.since),
                    "value": texts.of_number(i.value),
                    "limit": texts.of_number(i.limit),
                }
                for i in self._alarms.newest()
            ]
        )
        more = self._alarms.left_out
        self._left_out.set_text(f"{more:,} more were raised." if more else "")
