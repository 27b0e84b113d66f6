"""How fast the proxy is, beside other routers: see bench/proxy. Prints Markdown and writes it into docs/performance.md."""

from __future__ import annotations

from bench.proxy.command import main

if __name__ == "__main__":
    main()
