#!/usr/bin/env bash
# bench_proxy.sh PYTHON [OPTION...]: installs the peers (about 400 MB) into .peers, once, and runs the rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
peers=$("$python" -c 'from bench.proxy.routers import PEERS; print(*(f"{name}=={version}" for name, version in PEERS.items()))')
if [ "$(cat .peers/.ready 2>/dev/null || true)" != "$peers" ]; then
  echo "bench-proxy: installing $peers into .peers" >&2
  rm -rf .peers
  "$python" -m venv .peers
  for peer in $peers; do  # one by one: a peer that cannot be had is an arm that is reported as not started
    .peers/bin/pip install --quiet --disable-pip-version-check "$peer" || echo "bench-proxy: $peer cannot be installed" >&2
  done
  echo "$peers" >.peers/.ready
fi
exec "$python" scripts/bench_proxy.py "$@"
