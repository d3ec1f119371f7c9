"""``python -m mariner_console``: the same as ``mariner console``."""

from mariner_console.cli import console

if __name__ == "__main__":
    console(prog_name="mariner_console")
