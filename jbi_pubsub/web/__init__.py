"""The console: what a federation is doing, as pages for a browser (extra `web`, the only room that knows `nicegui`).

It shows what servers tell in their status, and does what administrators may do; it decides nothing.
"""
