"""Matching of objects with subscriptions, and the computation of what each gets. Pure."""
