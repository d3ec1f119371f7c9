"""Spark on top of the event store of the gateway.

The package is part of the distribution so that its name is taken and importable;
what it will hold (data source, stream, lake, reports) is listed in ``spark/README.md``.
"""
