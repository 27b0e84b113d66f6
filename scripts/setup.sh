#!/usr/bin/env bash
# setup.sh VENV [EXTRA]: makes the virtual environment VENV with kvctl and what it needs, and compiles the kernels once.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
extra=${2:-}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup: kvctl needs Python 3.11 or later; install it, or name it: make PYTHON=/path/to/python3.11 …" >&2
  exit 2
}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    rm -rf "$venv"
    package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
      apt-get update -qq
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
      "$python" -m venv "$venv"
    else
      echo "setup: this Python cannot make virtual environments; install the package $package" >&2
      exit 2
    fi
  fi
fi

echo "setup: installing kvctl into $venv${extra:+ (with $extra)}" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".${extra:+[$extra]}"
echo "setup: compiling the kernels (once)" >&2
"$venv/bin/python" -m router.prefix.warm
