"""The wire protocol: the values that publishers, subscribers and delegates exchange.

- `entries`: the platform's own Entry classes and service types in the lookup service.
- `ownership`: ids that prove whose a registration or subscription is.
- `requests`, `replies`: what is asked of a delegate, and what it answers.
- `services`: clients of what servers export. `repositories`: who is asked about types.
- `publications`, `deliveries`: items on the two data connections of a delegate.
- `conformity`: whether metadata are what was registered, on both sides alike.
- `remote`: who answers queries in the place of an archive.
- `mail_links`: addresses in mails that end or renew a subscription.
- `status`: what servers say of themselves.

It knows core and lookup, and nobody's state: adapters and delegates meet here.
"""
