"""The gateway without its compiled part: ``python -m tests.perf.uncompiled serve --conf FILE``."""

import sys

sys.modules["eventer_bridge.packed._packed"] = None  # type: ignore[assignment]

from mariner.cli import main  # noqa: E402

if __name__ == "__main__":
    main(prog_name="mariner")
