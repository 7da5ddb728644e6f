"""QoS-managed dissemination (QED paper): enforcement over processor time, links, queues.

It knows policy and core. Contracts carry what was resolved when they opened; nothing here reads a policy per object.
"""
