"""Items on the data connection from a publisher to its delegate."""

from __future__ import annotations

import struct
from typing import Final

PUBLICATION: Final = struct.Struct("!BII")

WHOLE, CHUNK, LAST_CHUNK, ABANDONED = 1, 2, 3, 4
"""A publication starts with its kind, the number of its registration on the connection, and its age: milliseconds since
it was published when it left, so that clocks need not agree. A large object comes as CHUNK ... LAST_CHUNK, the last of
which tells its age; between them come items of other registrations, none of its own. ABANDONED: nothing more
comes of the one whose chunks were coming."""

AGE_MOST: Final = 2**32 - 1
"""Milliseconds: what is older is told to be that old."""

MAX_COMING: Final = 4
"""Large objects of one publisher that may be coming in chunks at once: a delegate holds them in memory, or in a file,
before it can see what they are."""
