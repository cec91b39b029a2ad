#!/usr/bin/env bash
# Installs the Debian packages that agentgym can make use of; does nothing where they are there already.
#   bubblewrap   isolates what agents run        libnuma1   vLLM's CPU build links against it
#   procps       ps and kill, for shell tasks   python3.11-venv   where Debian's Python came without it
#   docker.io    containers; its daemon is started where nothing else would do so (root, without systemd or in CI)
#   chromium-headless-shell   the browser of the environment gui
#   python3-numpy, python3-sympy   what the code interpreter's cells may import
set -euo pipefail

packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }

need bwrap bubblewrap
need ps procps
need dockerd docker.io
/usr/bin/python3 -c 'import numpy, sympy' 2>/dev/null || packages+=(python3-numpy python3-sympy)
ldconfig -p | grep -q libnuma.so.1 || packages+=(libnuma1)
if command -v python3.11 >/dev/null && ! python3.11 -c 'import ensurepip' 2>/dev/null; then packages+=(python3.11-venv); fi

if ((${#packages[@]} == 0)); then
    :
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

browser=chromium-headless-shell  # not every distribution has it
if ! command -v $browser >/dev/null && command -v apt-get >/dev/null && ((EUID == 0)); then
    echo "installing $browser"
    install=(apt-get install -y -qq --no-install-recommends "$browser")
    "${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; } ||
        echo "note: there is no package $browser here: tests that need a browser are skipped"
fi

# Idempotent: a daemon that answers is left alone; one that was killed leaves a pid file that keeps the next from starting.
answers() { curl -sf --unix-socket /var/run/docker.sock http://localhost/_ping >/dev/null 2>&1 || docker version >/dev/null 2>&1; }
if ((EUID == 0)) && command -v dockerd >/dev/null && { [[ -n ${CI:-} ]] || [[ ! -d /run/systemd/system ]]; } && ! answers; then
    echo "starting dockerd"
    rm -f /var/run/docker.pid
    setsid nohup dockerd >/var/log/agentgym-dockerd.log 2>&1 </dev/null &
    for _ in {1..50}; do answers && break || sleep 0.2; done
    answers || echo "note: dockerd does not start here (see /var/log/agentgym-dockerd.log): tests that need it are skipped"
fi
