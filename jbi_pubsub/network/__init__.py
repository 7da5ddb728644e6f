"""Links between machines: their emulation, for tests, experiments and people who want to see what a poor link does.

It knows core alone: bytes and times, no delegate.
"""
