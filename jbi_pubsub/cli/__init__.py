"""jbi_pubsub/cli."""
