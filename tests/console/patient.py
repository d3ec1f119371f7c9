"""``mariner_console`` that keeps the pages of browsers that hang.

Else it drops them after some seconds, which is soon on a machine that is busy.
"""

import functools
from typing import Final

import pytest
from nicegui import ui

from mariner_console.cli import console

PATCH: Final = pytest.MonkeyPatch()

if __name__ == "__main__":
    patient = functools.partial(ui.run_with, reconnect_timeout=600.0)
    PATCH.setattr(ui, "run_with", patient)
    console(prog_name="mariner_console")
