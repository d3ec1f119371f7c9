"""What all clients of a process share, and how it is shared out: turns, and memory."""
