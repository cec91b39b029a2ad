# All variables can be overridden: make quickstart SEED=1, make install DEVICE=cpu PYTHON=python3.12
VENV ?= .venv
DEVICE ?=
PYTHON ?=
SEED ?=
SET ?=
PYTEST ?=
KILLS ?= 100
export DEVICE PYTHON

bin := $(VENV)/bin
seed := $(if $(SEED),--seed $(SEED))

.DEFAULT_GOAL := help
.PHONY: help install quickstart learn test test-slow chaos bench bench-learning lint format docs clean

help: ## show this
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24
	@echo
	@echo "  SEED=1 and SET='key=value ...' go to quickstart and learn, PYTEST='-k name' to test"

install: ## make .venv with everything in it (2 to 4 minutes; nothing to do: at once)
	@bash scripts/install.sh $(VENV)

quickstart: install ## a small real model learns a real task (at most 25 minutes on 2 cores)
	@$(bin)/agentgym quickstart $(seed) $(SET)

learn: install ## a longer run: RL alone makes the difference (at most 2 hours)
	@$(bin)/agentgym quickstart --config learn $(seed) $(SET)

lint: install ## ruff and mypy
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy

format: install ## let ruff mend what it can
	@$(bin)/ruff check --fix .
	@$(bin)/ruff format .

test: system lint ## install what tests need and run them
	@$(bin)/python -m pytest $(PYTEST)

test-slow: system install ## the tests that take minutes
	@$(bin)/python -m pytest -m slow $(PYTEST)

chaos: install ## a hundred random kills of a training run, whose books must balance (an hour or two)
	@$(bin)/python -m tests.chaos --kills $(KILLS) --seed $(or $(SEED),0)

bench: install ## rollout and trainer speed as shares of what the machine can do
	@$(bin)/python -m benchmarks.run

bench-learning: install ## RL only, OPD only and both on a synthetic task, five seeds: table and plot (half an hour)
	@$(bin)/python -m benchmarks.learning $(if $(SEED),--first-seed $(SEED))

docs: install ## make docs/config.md from the schema
	@$(bin)/python -m scripts.config_docs

docs-sandboxes: system install ## make the table of docs/sandboxes.md by making each attempt (minutes)
	@$(bin)/python -m scripts.sandbox_docs

clean: ## remove caches and builds; runs/ and the virtual environment stay
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

.PHONY: system
system:
	@bash scripts/system.sh
