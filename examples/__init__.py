"""Examples: `publisher` and `subscriber` to read and copy, `demo` to watch (`jbi demo`), and their data."""
