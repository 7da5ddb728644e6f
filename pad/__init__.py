"""Dissemination: the publisher-adapter delegate, with the parts that a peer publisher shares."""
