#!/usr/bin/env bash
# Installs the Debian packages that agentgym can make use of; does nothing where they are there already.
#   bubblewrap   isolates what agents run        libnuma1   vLLM's CPU build links against it
#   procps       ps and kill, for shell tasks   python3.11-venv   where Debian's Python came without it
set -euo pipefail

packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }

need bwrap bubblewrap
need ps procps
ldconfig -p | grep -q libnuma.so.1 || packages+=(libnuma1)
if command -v python3.11 >/dev/null && ! python3.11 -c 'import ensurepip' 2>/dev/null; then packages+=(python3.11-venv); fi

if ((${#packages[@]} == 0)); then
    exit 0
elif ! command -v apt-get >/dev/null; then
    echo "note: no apt-get here; install by hand what is missing: ${packages[*]}"
elif ((EUID != 0)); then
    echo "note: not root; to have everything: sudo apt-get install ${packages[*]}"
else
    echo "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    install=(apt-get install -y -qq --no-install-recommends "${packages[@]}")
    "${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; }
fi
