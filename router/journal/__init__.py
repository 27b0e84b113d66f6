"""What is kept and told of single requests: the access log, traces, the settling of callers' limits."""
