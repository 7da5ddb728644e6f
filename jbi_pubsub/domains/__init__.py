"""Domains: services that applications offer, and the trader that finds them by a constraint."""
