"""What is done when ``mariner-gateway`` is built or installed.

What ``mariner-client`` has is required, not built in. ``eventer_bridge.packed._packed`` is
compiled; where that fails, a warning says so, and the wheel is without it.
"""

import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from Cython.Build import cythonize
from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

MODULE: Final = "eventer_bridge.packed._packed"
# as Python itself is compiled: signed integers wrap, and objects are seen through several types;
# but without what a debugger needs, which is nine tenths of the module
FLAGS: Final = ("-fwrapv", "-fno-strict-aliasing", "-g0")
# of gcc and clang: a mistake in the module ends the process, where it might be used for an attack
HARDENING: Final = ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong")
LINK_HARDENING: Final = ("-Wl,-z,now",)


def compile_module(
    source: Path, folder: Path, flags: Sequence[str] = (), link_flags: Sequence[str] = ()
) -> Path:
    """Compile a ``.pyx`` file.

    Args:
        source: the file.
        folder: where everything goes that is made on the way.
        flags: for the compiler, besides :data:`FLAGS`.
        link_flags: for the linker.

    Returns:
        The extension module, in the folder.

    Raises:
        Exception: of Cython or setuptools: the file is wrong, there is no compiler, or it lacks a
            flag.
    """
    extension = Extension(MODULE, [str(source)])
    [made] = cythonize([extension], build_dir=folder, language_level=3, force=True, quiet=True)
    # only now: Cython remembers the flags of an extension for the next one of the same source
    made.extra_compile_args, made.extra_link_args = [*FLAGS, *flags], [*link_flags]
    command = build_ext(Distribution({"ext_modules": [made]}))
    command.build_lib = command.build_temp = str(folder)
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(MODULE))


def compile_hardened(source: Path, folder: Path) -> Path:
    """As :func:`compile_module`; with the flags of hardening, unless the compiler lacks one."""
    try:
        return compile_module(source, folder, HARDENING, LINK_HARDENING)
    except Exception as error:  # whatever it is, it may work without
        made = compile_module(source, folder)
        print(f"warning: eventer_bridge.packed is not hardened: {_reason(error)}", file=sys.stderr)
        return made


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Dependencies(MetadataHookInterface):
    """Those that ``pyproject.toml`` lists, and the client of the same version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them to the metadata."""
        client = f"mariner-client=={metadata['version']}"
        metadata["dependencies"] = [*self.config["dependencies"], client]


class Files(BuildHookInterface[BuilderConfig]):
    """Leaves the client's files out of the wheel, and compiles.

    The module is put beside its source if the install is editable, else into the wheel.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Leave out, and compile; ``version`` is ``editable`` or ``standard``."""
        client = tomllib.loads(Path(self.root, "mariner/client/pyproject.toml").read_text())
        wheel = client["tool"]["hatch"]["build"]["targets"]["wheel"]
        excluded = self.build_config.target_config["exclude"]  # is read after this
        excluded += [f"/{i}" for i in wheel["hooks"]["custom"]["files"]]
        source = Path(self.root, *MODULE.split(".")).with_suffix(".pyx")
        compiled = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        self._folder = TemporaryDirectory(prefix="mariner-")
        if version == "editable":
            compiled.unlink(missing_ok=True)  # of an older source
        try:
            made = compile_hardened(source, Path(self._folder.name))
        except Exception as error:  # whatever it is, the gateway works without
            text = f"not compiled: {_reason(error)}: registrations are slower"
            print(f"warning: eventer_bridge.packed is {text}", file=sys.stderr)
            return
        if version == "editable":
            shutil.copy(made, compiled)
        else:
            build_data["force_include"][str(made)] = str(compiled.relative_to(self.root))
            # not `pure_python=False`: some systems have another folder for such wheels, and the
            # client's part of each package would not be in it
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made on the way."""
        self._folder.cleanup()
