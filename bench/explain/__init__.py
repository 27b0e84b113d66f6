"""Why an arm was faster: cache hits, queueing, imbalance, the router's own share. Pure; begins at `explain.explain`."""
