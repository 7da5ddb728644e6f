"""The console and the HTTP gateway (extra `web`, the only door to `nicegui`).

It shows what servers tell in their status, and does what administrators may do; it decides nothing.
"""
