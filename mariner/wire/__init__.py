"""The Mariner protocol as bytes, messages and states, without I/O (002)."""
