"""The experiment: workloads, the measuring client, the design, the statistics and the simulated engine."""
