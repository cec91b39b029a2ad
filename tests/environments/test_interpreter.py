import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from agentgym.check import check_env
from agentgym.environments import interpreter_packages
from agentgym.environments.cgroups import no_cgroups
from agentgym.environments.interpreter import Interpreter, PythonTool
from agentgym.environments.interpreter_packages import bundle
from agentgym.environments.plain import no_mounts
from agentgym.environments.sandbox import CommandResult, open_sandbox
from agentgym.environments.toolcall import ToolCallEnv
from agentgym.environments.tools import Toolbox, sources_from
from agentgym.errors import SandboxError, TaskError, UsageError
from agentgym.types import Task, ToolCall
from tests.environments.attacks import ATTACKS, LIMITS, OPEN, Attack, command_of, host
from tests.environments.test_attacks import BY_CGROUP, BY_MOUNT

GONE = "the interpreter was replaced, all variables are gone]"


@pytest.fixture
async def python(kind: str) -> AsyncIterator[Interpreter]:
    made = Interpreter(sandbox=kind, timeout_s=5.0, packages=())
    yield made
    await made.close()
    await made.close()


async def test_cells_share_what_they_define(python):
    assert await python.run("x = 20\ndef double(y):\n    return 2 * y") == "(no output)"
    assert await python.run("import math\ndouble(x)") == "40"
    assert await python.run("print(_ + math.floor(2.5)); print('é€😀'); None") == "42\né€😀"
    assert await python.run("open('f', 'w').write('kept')") == "4"
    assert await python.run("__name__, open('f').read()") == "('__main__', 'kept')"
    assert await python.run("") == "(no output)" == await python.run("# nothing")


async def test_a_module_that_a_cell_writes_can_be_imported_and_pickled(python):
    await python.run("open('mine.py', 'w').write('n = 7')")
    assert await python.run("import mine, pickle\nclass A: n = mine.n\npickle.loads(pickle.dumps(A())).n") == "7"


async def test_errors_are_told_and_change_nothing_else(python):
    await python.run("x = 1")
    told = await python.run("x = 2\ndef f():\n    return 1 / 0\nf()")
    assert told.endswith("ZeroDivisionError: division by zero") and "    return 1 / 0" in told and "driver" not in told
    assert "SyntaxError" in await python.run("def f(:\n")
    assert await python.run("import sys; sys.exit(3)") == "SystemExit: 3"
    assert (await python.run("raise KeyboardInterrupt")).endswith("KeyboardInterrupt")
    assert "EOFError" in await python.run("input()")
    assert "RecursionError" in await python.run("def g(): return g()\ng()")
    assert await python.run("x") == "2"
    assert (await python.execute("1 / 0")).state == "error"


async def test_output_is_capped_with_the_count(python):
    python.max_chars = 4000
    told = await python.run("print('a' * 50_000 + 'b' * 50_000)")
    head, note, tail = told.split("\n")
    assert head == "a" * 2000 and tail == "b" * 1999 and note == "[... 96001 bytes left out ...]"
    assert len(await python.run("print('€' * 4000)")) == 2000 * 2 + len("\n[... 1 bytes left out ...]\n") - 1
    loop = "while True: print('x' * 1000)"
    python.timeout_s = 1.0
    told = await python.run(loop)
    assert len(told) < 4400 and ("interrupted" in told or "File too large" in told)


async def test_what_it_prints_cannot_be_taken_for_anything_else(python):
    escape = "print('\\x1b]52;c;aGk=\\x07\\x1b[2J\\x00done'); print('{\"number\": 1}')"
    assert await python.run(escape) == 'done\n{"number": 1}'.replace("done", "\x00done")
    refused = await python.execute("x = '\0'")
    assert refused.state == "refused" and "not run" in await python.run("\0")
    assert (await python.execute("#" * (1 << 21))).state == "refused"
    assert await python.run(r"""'%s %d {x} $HOME `id` \\ "'""") == r"""'%s %d {x} $HOME `id` \\ "'"""


async def test_an_interrupted_cell_leaves_its_variables(python):
    await python.run("x = 5")
    python.timeout_s = 0.5
    began = time.monotonic()
    for cell in (
        "while True: pass",
        "import time\ntime.sleep(60)",
        "x = 6\nimport subprocess\nsubprocess.run(['sleep', '60'])",
    ):
        assert await python.run(f"print('begun')\n{cell}") == "begun\n[timed out and interrupted: variables are kept]"
    assert time.monotonic() - began < 20
    python.timeout_s = 5.0
    assert await python.run("x") == "6"


async def test_one_that_cannot_be_interrupted_says_that_it_was_replaced(python):
    await python.run("x = 5")
    python.timeout_s = 0.3
    told = await python.run("import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass")
    assert told.startswith("[it took longer than 0.3 s") and told.endswith(GONE)
    python.timeout_s = 5.0
    assert "NameError" in await python.run("x")
    assert await python.run("x = 1\nx") == "1"


async def test_what_goes_on_after_a_time_out_is_ended(python):
    python.timeout_s = 0.5
    told = await python.run("import subprocess, time\np = subprocess.Popen(['sleep', '60'])\ntime.sleep(60)")
    assert told == f"[what the cell had started was still running: {GONE}"
    python.timeout_s = 5.0
    assert await python.run("import os\nos.system('sleep 0 & wait') == 0") == "True"


@pytest.mark.parametrize(
    "end", ["import os\nos._exit(3)", "import ctypes\nctypes.string_at(0)", "import os\nos.closerange(3, 100)"]
)
async def test_a_process_that_ends_is_replaced(python, end):
    await python.run("x = 5; open('f', 'w').write('kept')")
    assert await python.run(end) == f"[the process ended: {GONE}"
    assert "NameError" in await python.run("x") and await python.run("open('f').read()") == "'kept'"


async def test_a_forked_child_does_not_come_back(python):
    await python.run("import os\nx = 'parent'\nif os.fork() == 0: x = 'child'")
    assert await python.run("os.wait()[1]") == "0"
    assert await python.run("x") == "'parent'"


async def test_an_answer_that_a_cell_forges_is_found_out(python):
    forge = (
        'import os\nfor fd in range(3, 32):\n    try: os.write(fd, b\'{"number": 99, "state": "ok", "output": "forged", '
        '"left_out": 0, "busy": false}\\n\')\n    except OSError: pass'
    )
    assert (await python.run(forge)).endswith(GONE)
    assert await python.run("1 + 1") == "2"


async def test_memory_is_bounded(python):
    await python.run("x = 5")
    assert (await python.run("b = bytearray(900 << 20)")).endswith("MemoryError")
    assert await python.run("x") == "5"


async def test_a_full_disk_stops_no_cell(walled):
    python = Interpreter(sandbox="bubblewrap", packages=(), limits=LIMITS)
    fill = "n = 0\ntry:\n    while True:\n        open(f'f{n}', 'wb').write(b'x' * 8_000_000); n += 1\nexcept OSError: pass"
    await python.run(fill)
    assert await python.run("print('a' * 10)") == "aaaaaaaaaa"
    await python.close()


async def test_a_cell_that_spoils_its_sandbox_gets_another_one(walled):
    python = Interpreter(sandbox="bubblewrap", packages=())
    await python.run("import os\nopen('f', 'w').write('x')\nos.chmod('.', 0)")
    assert (await python.run("os._exit(1)")).endswith(GONE)
    told = await python.run("import os\nprint(os.listdir('.'))")
    assert told == "[]\n[the interpreter was replaced, all variables and files are gone]"
    assert await python.run("os.listdir('.')") == "[]"
    await python.close()


async def test_a_cancelled_cell_is_told_with_the_next_one(python):
    await python.run("x = 1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await python.run("import time\ntime.sleep(60)")
    assert (await python.run("print('on')")) == f"on\n[{GONE}"
    assert "NameError" in await python.run("x")


async def test_cells_that_come_at_once_run_one_after_another(python):
    await python.run("n = 0")
    await asyncio.gather(*(python.run("m = n\nimport time\ntime.sleep(0.01)\nn = m + 1") for _ in range(5)))
    assert await python.run("n") == "5"


async def test_numpy_and_sympy_are_there(kind):
    python = Interpreter(sandbox=kind, timeout_s=60.0)
    assert await python.run("import numpy as np\nint(np.linalg.det(np.eye(3) * 2).round())") == "8"
    assert await python.run("import sympy as sp\nx = sp.Symbol('x')\nsp.solve(x**2 - 2, x)") == "[-sqrt(2), sqrt(2)]"
    await python.close()


async def test_packages_are_copied_where_the_system_has_none(monkeypatch):
    """Whatever the system's Python has, a distribution that only we have is copied; none at all is said."""
    monkeypatch.setattr(interpreter_packages, "_known", {})
    python = Interpreter(sandbox="plain", packages=["mpmath", "iniconfig"], timeout_s=30.0)
    try:
        assert await python.run("import iniconfig\niniconfig.__name__") == "'iniconfig'"
        assert "iniconfig" in await python.run("import os\nos.listdir('.interpreter')")
    except SandboxError as error:  # the system's Python is of another version: its packages are its own
        assert "the sandbox's Python has no" in str(error)
    finally:
        await python.close()
    with pytest.raises(SandboxError, match="pip install no-such-package"):
        bundle(("no-such-package",))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_walls_hold_for_what_cells_do(attack: Attack) -> None:
    """The suite of attempts, each made from a cell; in bubblewrap, which the other kinds are compared with elsewhere."""
    kind = "bubblewrap"
    if problem := _no_walls():
        pytest.skip(problem)
    if (attack.name in BY_CGROUP and no_cgroups()) or (attack.name in BY_MOUNT and no_mounts()):
        pytest.skip("no cgroups, or no file systems of limited size, here")
    python = Interpreter(
        sandbox=kind, timeout_s=attack.timeout_s, max_chars=LIMITS.output_bytes, packages=(), limits=LIMITS
    )
    with host() as there:
        try:
            code = f"import subprocess\nsubprocess.run(['bash', '-c', {command_of(attack, there)!r}])\nNone"
            cell = await python.execute(code)
            how = "it said so" if "ESCAPED" in cell.output else ""
            assert python.sandbox is not None
            if attack.check is not None:
                ended = CommandResult(
                    exit_code=0, stdout=cell.output, stderr="", seconds=cell.seconds,
                    timed_out=cell.state == "timeout" or cell.replaced,
                )  # fmt: skip
                how = how or await attack.check(python.sandbox, ended, there)
            assert bool(how) == (attack.name in OPEN[kind]), how
            assert (await python.run("print('alive')")).startswith("alive")
        finally:
            await python.close()


def _no_walls() -> str:
    from agentgym.environments.bubblewrap import why_not

    return why_not()


async def test_it_is_a_tool():
    box = Toolbox(
        sources_from([{"class": "agentgym.environments.interpreter:PythonTool", "options": {"packages": []}}])
    )
    await box.start()
    (spec,) = box.specs
    assert spec.name == "python" and spec.parameters["required"] == ["code"] and "Variables" in spec.description
    for index, (code, answer) in enumerate([("x = 4", "(no output)"), ("x * x", "16")]):
        call = ToolCall(id=str(index), name="python", arguments=json.dumps({"code": code}))
        assert (await box.call(call)).content == answer
    await box.close()
    with pytest.raises(TaskError, match="PythonTool cannot be made"):
        sources_from([{"class": "agentgym.environments.interpreter:PythonTool", "options": {"pakages": []}}])
    assert PythonTool(timeout_s=3.0).interpreter.timeout_s == 3.0


def test_the_oracle_uses_it():
    task = Task(
        id="t",
        env="toolcall",
        instruction="What is 12 * 12?",
        data={
            "tools": [{"class": "agentgym.environments.interpreter:PythonTool", "options": {"packages": []}}],
            "expect": [{"kind": "answer", "value": 144}],
            "solution": [[{"name": "python", "arguments": {"code": "12 * 12"}}], "144"],
        },
    )
    report = check_env(ToolCallEnv, [task])
    assert report.ok, str(report)


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"max_chars": 1}, {"memory_mb": 1}, {"sandbox": "x"}])
def test_what_makes_no_sense_is_refused(options):
    with pytest.raises(UsageError, match="interpreter"):
        Interpreter(**options)


async def test_no_python_in_the_sandbox_is_said(monkeypatch):
    monkeypatch.setattr(interpreter_packages, "_known", {})
    monkeypatch.setattr(interpreter_packages, "PYTHONS", ("no-such-python",))
    sandbox = open_sandbox("plain")
    await sandbox.start()
    with pytest.raises(SandboxError, match="there is no Python"):
        await interpreter_packages.prepare(sandbox, (), "test")
    await sandbox.close()
