#!/usr/bin/env bash
# bench_proxy.sh PYTHON [OPTION...]: installs the peers (about 400 MB) into .peers, once, and runs the rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
bash scripts/install_peers.sh "$python"
exec "$python" scripts/bench_proxy.py "$@"
