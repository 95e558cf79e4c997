# `make demo` and `make test` need only Python 3.11, pip and make: they build .venv themselves.
PYTHON ?= python3
# Hundreds of processes import the package; some machines keep Python from writing what it compiled.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: demo test check unit flower test-slow docs format clean

demo: $(STAMP)
	$(BIN)/sojourn demo --out demo

test: $(STAMP)
	$(MAKE) --jobs=3 check unit flower

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not flower"

# These wait for one another most of the time; what they say is shown in one piece.
flower: $(STAMP)
	@said=$$(mktemp); $(BIN)/pytest -m "flower and not slow" $$(grep -rl --include='test_*.py' mark.flower tests) >$$said 2>&1; \
	code=$$?; cat $$said; rm -f $$said; exit $$code

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
