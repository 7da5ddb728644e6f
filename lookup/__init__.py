"""The lookup service: entries, items, templates, the registrar, its server, and the client side of discovery."""
