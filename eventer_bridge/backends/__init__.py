"""Backends, which store events; ``base`` is their contract."""
