#!/usr/bin/env bash
# results.sh PYTHON TRACE [OPTION...]: the run behind docs/results.md, 15 minutes at most, and the page with its pictures.
# Options go to kvctl bench (--requests 100 for a trial). A run without a verdict is written too, with its reasons.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
trace=${2:-}
shift
shift || true
if [ ! -f "$trace" ]; then
  echo "results: no trace '$trace': make results TRACE=path of the Mooncake conversation trace (JSONL)" >&2
  exit 2
fi
out=results-out
rm -rf "$out"
run=(bench --modes kv,random,round-robin,least-loaded,prefixaware --workers 8 --trace "$trace" --requests 900 --blocks 10
  --duration 840 "$@")
code=0
"$python" -m kvctl "${run[@]}" --out "$out" || code=$?
if [ "$code" -ne 0 ] && [ "$code" -ne 4 ]; then
  echo "results: kvctl bench ended with exit code $code; docs/results.md is left as it was" >&2
  exit "$code"
fi
shown=${run[*]}
PYTHONPATH=. "$python" -m bench.results_page "$out" --page docs/results.md --images docs/img \
  --command "kvctl ${shown/"$trace"/$(basename "$trace")}"
exit "$code"
