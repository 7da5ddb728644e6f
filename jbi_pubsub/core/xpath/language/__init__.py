"""XPath 1.0: its grammar, its numbers, what evaluating costs, and the conditions that an index can use."""
