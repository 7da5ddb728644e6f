"""Files that somebody may change while they are in use."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, ...]


def stamp(path: Path) -> Stamp:
    """What changes with a file, or with why it can't be looked at: two that are equal are of the same content, unless
    it was written again within the resolution of the file system's clock."""
    try:
        found = path.stat()
    except OSError as exc:
        return (exc.errno or 0,)
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
