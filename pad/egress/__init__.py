"""Delivery to subscribers: sessions, queues, and what those get who come late."""
