"""Links between machines: their emulation, for tests and experiments.

It knows core alone: bytes and times, no delegate.
"""
