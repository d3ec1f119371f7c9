"""``python -m tests.torture.sanitized_process MODULE INPUTS SEED``: the compiled module under test.

A file that was compiled in another way takes the place of ``eventer_bridge.packed._packed``.
"""

import random
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location

import pytest

NAME = "eventer_bridge.packed._packed"


class Finder(MetaPathFinder):
    """Finds this file where the module is looked for."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        if fullname != NAME:
            return None
        loader = ExtensionFileLoader(NAME, self._path)
        return spec_from_file_location(NAME, self._path, loader=loader)


def run_tests() -> None:
    """Run the tests of the module, but for those with a whole gateway, which take minutes."""
    # handling signals or capturing file descriptors would hide what a sanitizer tells
    off = [f"-pno:{name}" for name in ("cacheprovider", "faulthandler", "xdist")]
    folder = "tests/eventer_bridge/packed"
    code = pytest.main(["-qx", "--capture=sys", *off, folder, f"--ignore={folder}/test_gateway.py"])
    if code != pytest.ExitCode.OK:
        sys.exit(f"the tests failed: {code}")


def run_inputs(number: int, seed: int) -> None:
    """Try so many inputs of each fuzz target."""
    from tests.torture.fuzz_targets import PACKED, inputs

    for name, target in PACKED.items():
        n_run = 0
        for data in inputs(target, number, random.Random(seed)):
            try:
                target.run(data)
            except Exception:
                print(f"{name}: {data!r}", file=sys.stderr)
                raise
            n_run += 1
        print(f"{name}: {n_run} inputs")


def main() -> None:
    """Run what is wanted with the module."""
    path, number, seed = sys.argv[1:]
    sys.meta_path.insert(0, Finder(path))
    from eventer_bridge import packed

    assert packed.IS_COMPILED
    assert sys.modules[packed.read_json.__module__].__file__ == path
    run_tests()
    run_inputs(int(number), int(seed))


if __name__ == "__main__":
    main()
