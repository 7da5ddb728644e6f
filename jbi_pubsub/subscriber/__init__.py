"""jbi_pubsub/subscriber."""
