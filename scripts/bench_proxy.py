"""How fast the proxy is beside other routers, as Markdown: see bench/proxy."""

from __future__ import annotations

from bench.proxy.command import main

if __name__ == "__main__":
    main()
