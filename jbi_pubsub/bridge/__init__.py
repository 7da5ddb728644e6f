"""Bridges between platforms, and to MQTT brokers: the same objects under the same ids."""
