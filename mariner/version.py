"""The version of the project, read by the build and by ``mariner --version``."""

__version__ = "0.1.0"
