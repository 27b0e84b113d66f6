#!/usr/bin/env bash
# install_peers.sh PYTHON: vllm-router, SMG and Envoy (about 400 MB) into .peers, once. An arm that cannot be installed
# is one that is reported as not started.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
peers=$("$python" -c 'from bench.proxy.routers import PEERS; print(*(f"{name}=={version}" for name, version in PEERS.items()))')
if [ "$(cat .peers/.ready 2>/dev/null || true)" != "$peers" ]; then
  echo "installing $peers into .peers" >&2
  rm -rf .peers
  "$python" -m venv .peers
  for peer in $peers; do
    .peers/bin/pip install --quiet --disable-pip-version-check "$peer" || echo "$peer cannot be installed" >&2
  done
  echo "$peers" >.peers/.ready
fi
