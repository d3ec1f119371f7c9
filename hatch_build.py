"""Compile ``eventer_bridge.packed._packed`` when the project is built or installed.

It is optional: where it cannot be compiled, a warning says so, and the wheel is without it.
"""

import shutil
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from Cython.Build import cythonize
from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

MODULE: Final = "eventer_bridge.packed._packed"
# as Python itself is compiled: signed integers wrap, and objects are seen through several types;
# but without what a debugger needs, which is nine tenths of the module
FLAGS: Final = ("-fwrapv", "-fno-strict-aliasing", "-g0")


def compile_module(source: Path, folder: Path) -> Path:
    """Compile a ``.pyx`` file.

    Args:
        source: the file.
        folder: where everything goes that is made on the way.

    Returns:
        The extension module, in the folder.

    Raises:
        Exception: of Cython or setuptools: the file is wrong, or there is no compiler.
    """
    extension = Extension(MODULE, [str(source)], extra_compile_args=[*FLAGS])
    extensions = cythonize([extension], build_dir=folder, language_level=3, force=True, quiet=True)
    command = build_ext(Distribution({"ext_modules": extensions}))
    command.build_lib = command.build_temp = str(folder)
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(MODULE))


class CompiledModule(BuildHookInterface[BuilderConfig]):
    """Puts the module beside its source if the install is editable, else into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; ``version`` is ``editable`` or ``standard``."""
        source = Path(self.root, *MODULE.split(".")).with_suffix(".pyx")
        compiled = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        self._folder = TemporaryDirectory(prefix="mariner-")
        if version == "editable":
            compiled.unlink(missing_ok=True)  # of an older source
        try:
            made = compile_module(source, Path(self._folder.name))
        except Exception as error:  # whatever it is, the gateway works without
            reason = " ".join(str(error).split()) or type(error).__name__
            text = f"eventer_bridge.packed is not compiled: {reason}: registrations are slower"
            print(f"warning: {text}", file=sys.stderr)
            return
        if version == "editable":
            shutil.copy(made, compiled)
        else:
            build_data["force_include"][str(made)] = str(compiled.relative_to(self.root))
            build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made on the way."""
        self._folder.cleanup()
