"""QoS-managed dissemination (QED paper): the managers that enforce policies over processor time, links and queues.

It knows policy and core. Contracts carry what was resolved when they opened; nothing here reads a policy per object.
"""
