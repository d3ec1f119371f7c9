"""A group: servers with one commit log, of which one is active (``member``).

The death of any one machine, of a server or of the log, loses nothing that was acknowledged.
"""
