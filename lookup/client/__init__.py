"""The client side of the lookup service: discovery, sessions with lookup services, joining, finding."""
