"""The bridge between two federations: a surrogate in each, the links between them, and the matrix of its policies."""
