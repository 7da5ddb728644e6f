"""The archive: published objects on disk, found again by the predicates of subscriptions.

The log (`log.py`) is the truth: append-only files of the bytes as they came, on disk before a batch is acknowledged.
All else is derived and can be made anew: sealed volumes (`pack.py`), and an index (`index.py`) that says which objects
may match. What matches, lxml says.
"""
