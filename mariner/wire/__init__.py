"""The Mariner protocol as bytes, messages and states, without I/O (docs/protocol.md)."""
