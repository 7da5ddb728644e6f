"""The delegate as a server: exports, types, metrics."""
