"""``python -m mariner``: the same as the command ``mariner``."""

from mariner.cli import main

if __name__ == "__main__":
    main(prog_name="mariner")
