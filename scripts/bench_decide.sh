#!/usr/bin/env bash
# bench_decide.sh PYTHON [OPTION...]: installs Dynamo's runtime (about 350 MB) into .peers-decide, once, and measures.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
peer="ai-dynamo-runtime==1.6.1"
if [ "$(cat .peers-decide/.ready 2>/dev/null || true)" != "$peer" ]; then
  echo "bench-decide: installing $peer into .peers-decide" >&2
  rm -rf .peers-decide
  "$python" -m venv .peers-decide
  if .peers-decide/bin/pip install --quiet --disable-pip-version-check "$peer" pyzmq msgspec; then
    echo "$peer" >.peers-decide/.ready
  else
    echo "bench-decide: $peer cannot be installed; measuring without it" >&2
  fi
fi
if [ -f .peers-decide/.ready ]; then set -- --peer .peers-decide/bin/python "$@"; fi
exec env PYTHONPATH=. "$python" scripts/bench_decide.py "$@"
