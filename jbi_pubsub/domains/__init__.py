"""Domains: services and the trader that finds them by a constraint; simulations that scientists watch and steer."""
