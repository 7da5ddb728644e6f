"""The node service: a whole federation in one process."""
