"""The predicate index: what of many predicates can be found by keys, and what lxml has to look at."""
