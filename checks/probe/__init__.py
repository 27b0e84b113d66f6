"""Active probes: a few requests that show how routing behaves."""
