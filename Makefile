# `make demo` and `make test` need only Python 3.11, pip and make: they build .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: demo test check unit without-flower with-flower test-slow docs format clean

demo: $(STAMP)
	$(BIN)/sojourn demo --out demo

test: check unit

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests with Flower's processes wait most of the time, and go on beside the others.
unit: $(STAMP)
	$(MAKE) --jobs=2 without-flower with-flower

without-flower: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not flower"

with-flower: $(STAMP)
	@$(BIN)/pytest -m "flower and not slow" tests/deploy tests/cli > .flower.log 2>&1; \
	code=$$?; cat .flower.log; rm -f .flower.log; exit $$code

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

docs: $(STAMP)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Built again only when the pinned versions or the declared dependencies change.
$(STAMP): constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,docs,dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis demo docs/_build
