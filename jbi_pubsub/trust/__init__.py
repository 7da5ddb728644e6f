"""Certificates, signatures, revocation: the only door to `cryptography`.

It knows core alone. What is not signed and has no certificate costs nothing: nobody imports this room.
"""
