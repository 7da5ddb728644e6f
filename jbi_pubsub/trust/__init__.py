"""Certificates, signatures, revocation: the only door to `cryptography` (extra `trust`).

It knows core alone. What is not signed and has no certificate costs nothing: nobody imports this room.
"""
