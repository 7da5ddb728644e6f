"""Bridges between platforms: what is published on one is published on the other, under the same ids."""
