"""jbi_pubsub/publisher."""
