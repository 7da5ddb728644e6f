"""jbi-pubsub."""
