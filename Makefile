# Two commands matter: `make run` and `make test`. Both install what they need into .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
BENCH := .venv-bench
# One other busy process would slow torch down tenfold without this.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: help run test test-long torture docs lint format bench clean

help:
	@echo "make run        watch Pong being learned, guarded beside unguarded"
	@echo "make test       the test suite (about 10 minutes on 2 cores)"
	@echo "make test-long  the tests that take minutes each"
	@echo "make torture    attack the promises of the README (MINUTES=10)"
	@echo "make docs       the documentation as a site, in site/"
	@echo "make lint       ruff, mypy, import-linter"
	@echo "make format     let ruff rewrite the code"
	@echo "make bench      speed, side by side with peers (PARTS=\"learner replay\" for some)"
	@echo "make clean      remove .venv and caches"

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rlpd-gx needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11"; exit 2; }
	@test -d .venv || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (once; a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -c 'from rlpd_gx.safe_sets import compiled; compiled.kernel()'
	@touch $@

run: $(INSTALLED)
	@echo "Pong from ten recorded games, guarded and unguarded at once. An unsafe event is a lost point."
	@$(BIN)/rlpd-gx train --config examples/pong.yaml --compare
	@echo "Look inside: $(BIN)/rlpd-gx watch runs   (serves http://127.0.0.1:8642/)"

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not long"

test-long: $(INSTALLED)
	$(BIN)/python -m pytest -m long

MINUTES ?= 10
torture: $(INSTALLED)
	$(BIN)/python -m torture --minutes $(MINUTES)

docs: $(INSTALLED)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Peers that are not dependencies live in an environment of their own, with this project beside them.
$(BENCH)/.installed: pyproject.toml constraints.txt bench/peers.txt
	@test -d $(BENCH) || $(PYTHON) -m venv $(BENCH)
	@echo "Installing into $(BENCH) (once; some minutes) ..."
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@for peer in $$(cat bench/peers.txt); do \
	  $(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$peer" || \
	    echo "cannot be installed here, so the tables do without it: $$peer"; \
	done
	@touch $@

bench: $(BENCH)/.installed
	PYTHONPATH=src $(BENCH)/bin/python -m bench $(PARTS)

clean:
	rm -rf .venv $(BENCH) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
