"""One file a study: what it counts of each publication, and what it tells of the sums."""
