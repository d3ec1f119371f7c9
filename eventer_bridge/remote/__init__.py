"""Remote servers: relaying to an Event Server, replicating one, and the servers of a group."""
