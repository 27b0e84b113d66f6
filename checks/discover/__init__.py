"""Who is a router, a worker, a cache server; and whose stack it is."""
