# `make demo` and `make test` need only Python 3.11 or later, pip and make: they create .venv themselves.
PYTHON ?= python3
# Hundreds of processes import the package, so Python must be allowed to cache its bytecode.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
STAMP := .venv/.ready
AUDITED := .venv/.audited

.PHONY: demo local-work test check unit flower test-slow test-pythons docs format clean
PYTHONS ?= 3.11 3.12 3.13

demo: $(STAMP)
	$(BIN)/sojourn demo --out demo

# Rules for local work on a character transformer: five to ten minutes of one core; what is done is not done again.
local-work: $(STAMP)
	$(BIN)/sojourn train experiments/local-work/local-work.toml --out runs/local-work --resume
	$(BIN)/sojourn compare runs/local-work

test: $(STAMP)
	$(MAKE) --jobs=3 check unit flower

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src experiments/paper/reproduction
	$(MAKE) $(AUDITED)

unit: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not flower"

# Flower's processes wait most of the time, so these run beside the unit tests; their output is shown as one block.
flower: $(STAMP)
	@output=$$(mktemp); $(BIN)/pytest -m "flower and not slow" $$(grep -rl --include='test_*.py' mark.flower tests) >$$output 2>&1; \
	code=$$?; cat $$output; rm -f $$output; exit $$code

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

# A base installation, without torch, under every interpreter of PYTHONS that is found.
test-pythons:
	.ci/pythons $(PYTHONS)

docs: $(STAMP)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Rebuilt only when the pinned versions or the declared dependencies change.
$(STAMP): constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,docs,dev]'
	touch $@

# Once for every change of the pinned versions.
$(AUDITED): constraints.txt
	.ci/audit $(BIN)/python
	touch $@

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis demo docs/_build
