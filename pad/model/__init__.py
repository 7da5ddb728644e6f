"""Records of a delegate: subscriptions, registrations, rights, and the optional stages of its pipeline."""
