"""The files of ``schemas/``, in the installed package or in the checkout."""

import importlib.resources
from pathlib import Path


def read_schema(name: str) -> str:
    """Text of a file of ``schemas/``.

    Args:
        name: file name, for example ``mariner.yaml``.

    Raises:
        FileNotFoundError: there is no such file.
    """
    packaged = importlib.resources.files("eventer_bridge") / "schemas" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    # a checkout (even one installed in editable mode) has them at its top level
    checkout = Path(__file__).parent.parent / "schemas" / name
    return checkout.read_text(encoding="utf-8")
