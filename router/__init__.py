"""The router: a library first, a server second. It imports neither `kvctl`, `checks` nor `bench`."""
