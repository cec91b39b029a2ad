"""The code of docs/toolcall.md does what it says."""

import re
import subprocess
import sys
from pathlib import Path

from agentgym.environments.toolcall_verify import JUDGES
from agentgym.registry import TASK_SETS, TOOL_FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "toolcall.md").read_text(encoding="utf-8")


def test_the_blocks_run(tmp_path):
    files = re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for name, text in files:
        (tmp_path / name).write_text(text)
    last, text = files[-1]
    done = subprocess.run([sys.executable, last], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == re.search(r"# (toolcall: .*)$", text, re.MULTILINE)[1]


def test_what_there_is_is_told():
    for name in (*JUDGES, *TOOL_FORMATS.names(), *(name for name in TASK_SETS.names() if name.startswith("toolcall/"))):
        assert f"`{name}`" in PAGE
