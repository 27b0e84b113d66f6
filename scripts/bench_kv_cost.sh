#!/usr/bin/env bash
# bench_kv_cost.sh PYTHON OUT: kv's cost in time against blocks, before eight engines alike, then before four that are
# three times as slow as the other four. About six minutes; leaves OUT/alike and OUT/mixed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
out=$2
kvctl() { "$python" -m kvctl "$@"; }
started=()
stop() {
  [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
  wait
  started=()
}
trap stop EXIT

# compare NAME SPEEDUP_OF_THE_SECOND_FOUR BENCH_OPTION…
compare() {
  local name=$1 speedup=$2 workers=() number
  shift 2
  kvctl sim --count 4 --port 18300 --kv-port 18400 --replay-port 18500 >/dev/null 2>&1 & started+=($!)
  kvctl sim --count 4 --port 18310 --kv-port 18410 --replay-port 18510 --speedup "$speedup" >/dev/null 2>&1 & started+=($!)
  for number in 0 1 2 3; do
    workers+=(--worker "http://127.0.0.1:$((18300 + number)),id=a-$number")
    workers+=(--worker "http://127.0.0.1:$((18310 + number)),id=b-$number")
  done
  kvctl serve --port 18601 --admin-port 18701 --seed 1 "${workers[@]}" >/dev/null 2>&1 & started+=($!)
  kvctl serve --port 18602 --admin-port 18702 --seed 1 --kv-cost time "${workers[@]}" >/dev/null 2>&1 & started+=($!)
  for number in 1 2 3 4 5 6 7 8 9 10 11 12; do
    sleep 2.5
    curl -sf http://127.0.0.1:18601/ready >/dev/null && curl -sf http://127.0.0.1:18602/ready >/dev/null && break
  done
  echo "== $name"
  kvctl bench --url time=http://127.0.0.1:18602 --url blocks=http://127.0.0.1:18601 --out "$out/$name" "$@"
  stop
}

compare alike 1
compare mixed 0.33 --rate 10
