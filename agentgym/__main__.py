"""`python -m agentgym`."""

from agentgym.cli import main

main()
