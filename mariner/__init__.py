"""Mariner: the gateway's outer protocol, its server, client and command line."""

from mariner.version import __version__

__all__ = ["__version__"]
