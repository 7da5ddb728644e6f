"""Dissemination: the publisher-adapter delegate, and all that it shares with the peer publisher."""
