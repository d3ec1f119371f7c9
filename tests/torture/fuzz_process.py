"""``python -m tests.torture.fuzz_process MODULE:FUNCTION [OPTION OF LIBFUZZER]... CORPUS``."""

import importlib
import sys

import atheris


def main() -> None:
    """Fuzz a function of bytes until an input makes it fail, or the time is over."""
    module, _, function = sys.argv.pop(1).partition(":")
    with atheris.instrument_imports(include=["eventer_bridge", "mariner.wire"]):
        target = getattr(importlib.import_module(module), function)
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
