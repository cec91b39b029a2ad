"""Runs a command whose processes all end when their owner, the command itself, or either of its two watchers ends.

    python -m agentgym.policies.vllm_supervisor OWNER_PID COMMAND...

vLLM's engine processes outlive a killed API server, and nobody tells them when their owner is killed. One watcher would
do, but for its own death: whoever is killed with -9 here, another adopts what is left and ends it. It ends with the
command's exit code (128 + n for signal n).
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from agentgym.supervise import supervised

GRACE_S = 3.0  # for vLLM to end in order, which frees its shared memory


def main(argv: list[str]) -> NoReturn:
    """Become `argv[1:]` below two watchers, for the owner `argv[0]`."""
    owner, command = int(argv[0]), argv[1:]
    supervised(owner, GRACE_S)
    supervised(os.getppid(), GRACE_S)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
