"""Certificates, signatures, revocation: the only room that knows `cryptography` (extra `trust`).

It knows core alone. What is not signed and has no certificate costs nothing: nobody imports this room.
"""
