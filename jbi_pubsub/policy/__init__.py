"""Who may do what: the rules of policy.toml, their reader, their watcher, the decision point, the audit log.

It knows core and lookup. Rules are looked at when a contract opens, never per object.
"""
