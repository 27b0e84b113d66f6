#!/usr/bin/env bash
# system-packages.sh PACKAGE…: installs the Debian packages that are not there yet; needs root and apt-get.
set -euo pipefail

missing=()
for package in "$@"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "system-packages: please install ${missing[*]}; that needs root and apt-get" >&2
  exit 2
fi
echo "system-packages: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # runlevel 1: the package starts no service
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
