"""The node service: what a federation offers, in one process, composed of the rooms that there are."""
