"""Take the files of ``mariner-client`` from all over the checkout when its wheel is built."""

from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ClientFiles(BuildHookInterface[BuilderConfig]):
    """Puts the files that ``mariner/client/pyproject.toml`` lists into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name them; ``version`` is ``editable`` or ``standard``."""
        if version != "editable":  # that has the checkout itself, which a copy would hide
            checkout = Path(self.root).parents[1]
            build_data["force_include"].update({str(checkout / i): i for i in self.config["files"]})
