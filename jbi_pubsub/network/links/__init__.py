"""Links that datagrams between nodes go over: each is a plug-in `network.NAME`, or one of these."""
