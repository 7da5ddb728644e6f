"""Examples: `publisher` and `subscriber` to read and copy, `demo` to watch (`jbi demo`), programs for one thing each
(`jbi demo NAME`, listed in `example`), a notebook, and their data."""
