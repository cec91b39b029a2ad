"""The rules of the house that a reader cannot see at a glance: layers, light import, packaging, plain files."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("environments", "policies", "trainers", "tasks")
HEAVY = ("torch", "vllm", "deepspeed", "docker", "playwright", "transformers", "ray", "scipy", "tensorboard", "fastapi")

# From the ground up: a module imports from its own row and from those above it here, never from a row below.
# Side rooms stand in the rows of what they may use; two of them never import one another.
LAYERS = (
    ("errors", "lag", "untrusted", "plugins"),
    ("types", "supervise"),
    ("env", "policy", "judge", "hints", "teacher", "task", "registry", "wrapping", "config", "schema"),
    (
        "environments",
        "policies",
        "tasks",
        "check",
        "models",
        "stats",
        "sessions_to_three",
        "charts",
        "metrics",
        "doctor",
        "database",
    ),
    ("rollout", "store", "store_scores", "samples", "report"),
    ("wire", "run", "gateway"),
    ("worker",),
    ("remote",),
    ("executors",),
    ("pool",),
    ("collect", "scoring"),
    ("trainers", "evaluate"),
    ("results",),
    ("pipeline",),
    ("live",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
WIRING = ("pipeline", "live", "cli", "__main__")  # where rooms meet: these may import any of them
BANNED = ("TODO", "FIXME", "XXX", "HACK", "raise NotImplementedError", "unittest.mock", "__del__")


def code_files() -> list[Path]:
    folders = ("agentgym", *ROOMS, "scripts", "benchmarks")
    found = {path.resolve() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    return sorted(found)


def module_name(path: Path) -> str:
    """agentgym/pool.py is "pool"; environments/plain.py is "environments.plain"; agentgym/cli/x.py is "cli.x"."""
    parts = list(path.resolve().relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "agentgym" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, inside_functions: bool = True) -> set[str]:
    """The agentgym modules that a file imports when it runs; those for type checkers only do not count."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found |= {f"{base}.{alias.name}" for alias in node.names} if base in _PACKAGES else {base}
        pending += list(ast.iter_child_nodes(node))
    return {name.removeprefix("agentgym.") for name in found if name.startswith("agentgym.")}


_PACKAGES = {"agentgym", "agentgym.cli", "agentgym.gateway", *(f"agentgym.{room}" for room in ROOMS)}
MODULES = [path for path in code_files() if not path.is_relative_to(ROOT / "scripts")]
MODULES = [path for path in MODULES if not path.is_relative_to(ROOT / "benchmarks")]


def room_of(name: str) -> str:
    return name.split(".")[0]


def test_each_module_has_its_layer():
    names = {room_of(module_name(path)) for path in MODULES} - {""}
    assert names <= LEVEL.keys(), f"give these a row in LAYERS: {sorted(names - LEVEL.keys())}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path):
    room = room_of(module_name(path))
    if not room:  # agentgym/__init__.py gathers the public names
        return
    used = {room_of(name) for name in imports_of(path)} & LEVEL.keys()
    assert not {name for name in used if LEVEL[name] > LEVEL[room]}
    if room in ROOMS:
        assert not used & (set(ROOMS) - {room}), "side rooms never import one another"
    elif room not in WIRING:
        assert not used & set(ROOMS), "the core names what is in the rooms by strings only"


def test_the_reader_of_imports_sees_what_it_should(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nimport agentgym.trainers.loop\nfrom agentgym import stats\n"
        "if TYPE_CHECKING:\n    from agentgym.pool import RolloutPool\n"
        "def f():\n    from agentgym.policies import vllm\n    from agentgym.types import Task\n"
    )
    assert imports_of(file) == {"trainers.loop", "stats", "policies.vllm", "types"}
    assert imports_of(file, inside_functions=False) == {"trainers.loop", "stats"}


def test_no_import_cycles():
    graph = {module_name(path): imports_of(path, inside_functions=False) for path in MODULES}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done and name in graph:
            for used in sorted(graph[name]):
                visit(used, (*trail, name))
            done.add(name)

    for name in graph:
        if name:
            visit(name, ())


def test_importing_the_package_is_light():
    program = f"import sys, agentgym; print(sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_mapping_and_links_agree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapping = {name.removeprefix("agentgym."): folder for name, folder in settings["package-dir"].items()}
    assert mapping == {"agentgym": "agentgym"} | {room: room for room in ROOMS}
    assert "packages" not in settings
    for room in ROOMS:
        link = ROOT / "agentgym" / room
        assert link.is_symlink() and link.readlink() == Path(f"../{room}")


def test_the_editable_install_imports_from_any_folder(tmp_path):
    program = "import agentgym, agentgym.environments, agentgym.policies, agentgym.trainers, agentgym.tasks as t; print(t.__file__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == ROOT / "tasks" / "__init__.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from a copy of the tree, so that nothing is left in it."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    unbuilt = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("agentgym", *ROOMS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=unbuilt)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True, timeout=110, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_one_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"agentgym"}
    assert {"agentgym/py.typed", "agentgym/report.css", "agentgym/cli/__init__.py"} <= set(names)
    modules = {f"agentgym/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).glob("*.py")}
    assert modules <= set(names)
    shipped = {f"agentgym/configs/{path.name}" for path in (ROOT / "agentgym/configs").glob("*.yaml")}
    assert shipped and shipped <= set(names)


def test_the_wheel_installs_and_finds_its_configs(wheel, tmp_path):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path)]
    subprocess.run([*command, str(wheel)], check=True, timeout=110, capture_output=True)
    program = (
        "import agentgym, agentgym.tasks, agentgym.config as c; "
        "print(agentgym.__file__, agentgym.tasks.__file__, c.find_config('quickstart'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(tmp_path)) for path in done.stdout.split())


def test_the_config_page_is_made_from_the_schema():
    sys.path.insert(0, str(ROOT))
    try:
        from scripts.config_docs import PAGE, page
    finally:
        sys.path.remove(str(ROOT))
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


@pytest.mark.parametrize("path", code_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_finished(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert not [word for word in BANNED if re.search(rf"\b{re.escape(word)}\b", text)]


def test_versions_agree():
    import agentgym

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert agentgym.__version__ == project["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_constraints_cover_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cpu"], *extras["train"], *extras["dev"]]
    names = {re.match(r"[A-Za-z0-9_.-]+", line)[0].lower().replace("_", "-") for line in wanted}
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert names <= pinned
