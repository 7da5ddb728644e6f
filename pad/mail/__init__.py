"""Delivery by e-mail: the queue of mails, what they say, how they are sent, and the queue on disk. Knows no session."""
