"""`python -m jbi_pubsub` is `jbi`."""

from jbi_pubsub.cli import main

main()
