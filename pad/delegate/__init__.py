"""The delegate itself: contracts of publishers and subscribers, under one lock."""
