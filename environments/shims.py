"""What a task's test script asks of its image and of the network, answered from the toolbox: for sandboxes without either.

`apt-get`, `curl` and `uv pip install` do nothing and succeed; `uv run`, `uvx` and `python -m pytest` run the pytest of
the toolbox, without the options of plugins that it does not have.
"""

from __future__ import annotations

from agentgym.environments.patches import EXECUTABLE, Blob
from agentgym.environments.toolbox import toolbox

NOTHING = ("apt", "apt-get", "apk", "curl", "wget", "pip", "pip3", "npm", "update-ca-certificates")
PYTEST = """\
#!/usr/bin/env -S python3 -I
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
given, kept = sys.argv[1:], []
paths = [given.pop(0)] if given[:1] == ["."] else []
while given:
    one = given.pop(0)
    name, _, value = one.partition("=")
    if name in ("--ctrf", "--timeout", "-n", "--numprocesses", "--json-report-file", "--reruns", "--html"):
        if not value and given:
            given.pop(0)
    elif not name.startswith(("--json-report", "--cov", "--self-contained-html", "--timeout")):
        kept.append(one)
run = os.path.join(here, "..", ".agentgym", "run.py")
options = ["--show-capture=no", "-p", "no:cacheprovider", "--color=no"]
os.execvp("python3", ["python3", "-I", run, *paths, "--", *options, *kept])
"""
PYTHON = """\
#!/bin/sh
[ "$1" = -m ] && [ "$2" = pytest ] && { shift 2; exec "$(dirname "$0")/pytest" . "$@"; }
[ "$1" = -m ] && { [ "$2" = pip ] || [ "$2" = venv ] || [ "$2" = ensurepip ]; } && exit 0
PATH="${PATH#"$(dirname "$0")":}" exec python3 "$@"
"""
UV = """\
#!/bin/sh
skip() {
    while [ "${1#-}" != "$1" ]; do
        case "$1" in -p|--python|-w|--with|--from|--project|--directory|--index-url) shift 2 ;; *) shift ;; esac
    done
    exec "$@"
}
case "$(basename "$0") $1" in
    "uvx "*) skip "$@" ;;
    "uv run") shift; skip "$@" ;;
    "uv tool") shift 2; skip "$@" ;;
    "uv venv") for last; do :; done; [ "$last" = venv ] && last=.venv; mkdir -p "$last/bin"; : > "$last/bin/activate" ;;
esac
"""


def shims() -> dict[str, Blob]:
    """The programs in `bin`, an empty home for `uv`, and the toolbox beside them."""
    programs = dict.fromkeys(NOTHING, "#!/bin/sh\nexit 0\n")
    programs |= {"pytest": PYTEST, "py.test": PYTEST, "python": PYTHON, "python3": PYTHON, "uv": UV, "uvx": UV}
    files = {f"bin/{name}": Blob(mode=EXECUTABLE, content=text.encode()) for name, text in programs.items()}
    return {**files, "home/.local/bin/env": Blob(), "home/.bashrc": Blob(), **toolbox()}
