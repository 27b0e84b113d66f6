#!/usr/bin/env bash
# compare_peers.sh PYTHON [OPTION...]: installs the peers once (.peers, .peers-dynamo: 400 and 900 MB) and compares.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
bash scripts/install_peers.sh "$python"
dynamo=ai-dynamo==1.6.1
env=.peers-dynamo
if [ "$(cat $env/.ready 2>/dev/null || true)" != "$dynamo" ]; then
  echo "installing $dynamo into $env" >&2
  rm -rf $env
  "$python" -m venv $env
  # Without aisimulate: its package only fetches another from an index of its own, and neither the frontend nor the
  # mocker needs it.
  if $env/bin/pip install --quiet --disable-pip-version-check --no-deps "$dynamo" &&
    $env/bin/python -c '
import importlib.metadata
for line in importlib.metadata.requires("ai-dynamo"):
    if "extra ==" not in line and not line.startswith("aisimulate"):
        print(line.partition(";")[0].strip())' >$env/requirements.txt &&
    $env/bin/pip install --quiet --disable-pip-version-check -r $env/requirements.txt; then
    echo "$dynamo" >$env/.ready
  else
    echo "$dynamo cannot be installed; its arms are left out" >&2
  fi
fi
exec env PYTHONPATH=. "$python" -m bench.compare.command "$@"
