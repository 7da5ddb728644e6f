"""The lookup service: entries, items, templates, the registrar, discovery."""
