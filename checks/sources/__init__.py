"""Where evidence comes from: Kubernetes, Prometheus, HTTP, files, and a recording of all of them."""
