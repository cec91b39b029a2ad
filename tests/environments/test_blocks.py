import pytest

from agentgym.environments.blocks import NO_BLOCK, block, parse_block


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("```bash\nls\n```", "ls"),
        ("I look.\n\n```sh\nls -la\ncd x\n```\nDone.", "ls -la\ncd x"),
        ("```\nls\n```  ", "ls"),
        ("```bash\r\nls\n```\r\n", "ls"),
        ("````bash\necho '```' > a\n```\n````", "echo '```' > a\n```"),
        ('```bash\nmkdir -p "test/{a,b}"\n```', 'mkdir -p "test/{a,b}"'),
    ],
)
def test_one_block_is_a_command(text: str, command: str) -> None:
    assert parse_block(text) == (command, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", NO_BLOCK),
        ("ls", NO_BLOCK),
        ("`ls`", NO_BLOCK),
        ("```bash ls```", "the block must stand on lines of its own"),
        ("```bash\nls", "the block is not closed"),
        ("```bash\nls\n```\n```bash\npwd\n```", "there are 2 blocks"),
        ("```python\nprint()\n```", "the block is python, not bash"),
        ("```bash\n\n```", "the block is empty"),
    ],
)
def test_anything_else_is_a_problem_in_words(text: str, problem: str) -> None:
    assert parse_block(text) == ("", problem)


@pytest.mark.parametrize("command", ["ls", "cat <<'E' > a\n```bash\nx\n```\nE", "echo '````'"])
def test_what_the_oracle_writes_is_read_back(command: str) -> None:
    assert parse_block(block(command)) == (command, "")
