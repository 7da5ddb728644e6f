"""The past: an archive's queries, durable subscriptions, and answers from elsewhere."""
