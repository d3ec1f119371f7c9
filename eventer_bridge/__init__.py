"""The event core: model, engine, backends, and the wires of Hat-style systems.

Imports go one way: ``mariner`` imports this package, never the other way round.
"""
