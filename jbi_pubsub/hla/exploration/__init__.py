"""Exploration of what can become of federations and the bridges between them: every order in which things can happen,
tried."""
