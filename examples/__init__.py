"""Examples: ordinary applications to read, copy and watch, with their data."""
