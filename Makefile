# Each target sets up what it needs; see CONTRIBUTING.md.
PYTHON := .venv/bin/python
SUBMAKE = $(MAKE) # under another name: make carries out a line that names it also with -n

.PHONY: dev check fix test attacks bench bench-check soak package lint

dev: ## .venv with everything for development
	@IMPYARD_SETUP=dev bin/impyard

lint: dev
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

check: lint ## what needs no Docker and no network, some two minutes
	$(PYTHON) -m pytest -q tests/unit

fix: dev ## mend what can be mended
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test: ## all of it; as root on Debian or Ubuntu, Docker is installed and started when it is missing
	@IMPYARD_SETUP=test bin/impyard
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; $(SUBMAKE) --no-print-directory lint >"$$log" 2>&1 & lint=$$!; \
	IMPYARD_SETUP=browser bin/impyard; bin/impyard image build || { wait; exit 1; }; \
	status=0; wait $$lint || status=1; cat "$$log"; \
	$(PYTHON) -m tests.side_by_side || status=1; exit $$status

attacks: ## every attempt of the attack suite, and a table by group
	@IMPYARD_SETUP=test bin/impyard
	bin/impyard image build
	$(PYTHON) -m pytest -q -m attack

bench: dev ## figures beside their targets; some minutes. One of them, options: make bench NAMES="kept --rounds 3"
	$(PYTHON) -m tests.bench $(NAMES)

bench-check: dev ## fails when a ratio is more than a fifth worse than the stored one; before a release
	$(PYTHON) -m tests.bench --check $(NAMES)

soak: dev ## long runs, very many requests, random kills; as root, an hour or more. One of them: make soak NAMES=kills
	bin/impyard image build
	$(PYTHON) -m tests.soak $(NAMES)

package: dev ## wheel and source archive in dist/
	rm -rf build dist
	$(PYTHON) -m build
