"""Metrics of engines and routers, from Prometheus or from their own pages."""
