#!/usr/bin/env bash
# agreement.sh PYTHON [OPTION...]: installs aiperf into .peers-aiperf (once, 1.3 GB) and compares three load generators.
# The environment with vllm is that of tests/real/setup.sh (KVCTL_REAL_ENV, or .venv-vllm); its bench needs two more.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
aiperf=aiperf==0.13.0
if [ "$(cat .peers-aiperf/.ready 2>/dev/null || true)" != "$aiperf" ]; then
  echo "installing $aiperf into .peers-aiperf" >&2
  rm -rf .peers-aiperf
  "$python" -m venv .peers-aiperf
  if .peers-aiperf/bin/pip install --quiet --disable-pip-version-check "$aiperf"; then
    echo "$aiperf" >.peers-aiperf/.ready
  else
    echo "$aiperf cannot be installed; measuring without it" >&2
  fi
fi
vllm=${KVCTL_REAL_ENV:-.venv-vllm}
if [ ! -x "$vllm/bin/vllm" ]; then
  echo "no vllm in $vllm: run tests/real/setup.sh, or name an environment with KVCTL_REAL_ENV; measuring without it" >&2
elif ! "$vllm/bin/python" -c 'import pandas, datasets' 2>/dev/null; then
  "$vllm/bin/pip" install --quiet --disable-pip-version-check pandas datasets
fi
exec env PYTHONPATH=. "$python" -m bench.agreement.command --vllm "$vllm" "$@"
