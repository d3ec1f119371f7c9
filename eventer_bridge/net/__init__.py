"""Connections of all wires: accepting, counting and bounding them.

Limits count from ``accept``, before TLS and names. A connection takes an ``admission.Slot`` of the
process' ``Admission``: one for new connections until ``init``, then one for known connections.
Silent peers therefore never keep out authenticated clients.
"""
