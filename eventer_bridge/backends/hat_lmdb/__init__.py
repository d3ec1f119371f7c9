"""The LMDB database of hat-event servers: reading it, and importing it into a new store."""
