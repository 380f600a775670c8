# make demo: set up, train the default model on little stories, show what it writes
# make test: set up, run the tests      make check: format, lint, types, the guide's tables and links
# make site: the guide as pages with a search, in outputs/site; REPOSITORY=ADDRESS is where links
#   to the project's files lead, such as https://HOST/OWNER/transformer_norms/blob/main
# make tables: write those tables anew      make nightly AREA=name: the long tests of an area
# make nightly AREA=trust, AREA=science: all tests that show a goal of tests/TRUST.md fill its rows
# make experiments-report: every table and figure of experiments/, from what is committed there
# make lock: pin every package anew, constraints.txt its version and requirements.lock its hashes
# make benchmark: all that benchmarks/ measures without a GPU, in short, into outputs/benchmarks/
#   (within 30 minutes, on a quiet machine)
# make publish: uploads sdist and wheel, which make dist builds and checks. Before it, one commit has
# the new version in __init__.py, CHANGELOG.md and CITATION.cff, and the tag vVERSION
PYTHON ?= python3
BIN := .venv/bin
MEASURED := outputs/benchmarks
SHELL := /bin/bash -o pipefail
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE := .venv/lock/bin/uv pip compile --quiet --universal --fork-strategy fewest --all-extras \
	--group lock --no-header --no-annotate pyproject.toml

.PHONY: demo test check site tables nightly experiments-report benchmark setup lock format dist publish clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make a venv; on Debian: apt-get install python3-venv"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the locked packages into .venv (a minute or two)"
	@# Only torch is fetched without a hash: its wheel differs by platform. setuptools comes first: it
	@# builds the one package that has no wheel. --no-deps, since torchscale would bring torchvision.
	@awk '/^[a-z]/ {on = /^setuptools==/} on' requirements.lock | $(INSTALL) --require-hashes --no-deps -r /dev/stdin
	@$(INSTALL) --require-hashes --no-deps --no-build-isolation --use-pep517 -r requirements.lock
	@$(INSTALL) --no-warn-conflicts -c constraints.txt torch
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# Versions stay where pyproject.toml allows them; LOCK="--upgrade" or LOCK="--upgrade-package rich"
# takes the newest. What the two files hold is installed and tested before it is committed.
lock:
	@$(PYTHON) -m venv .venv/lock && .venv/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(COMPILE) $(LOCK) -o constraints.txt
	@$(COMPILE) -c constraints.txt --generate-hashes --no-emit-package torch -o requirements.lock
	@.venv/lock/bin/uv pip compile --quiet --universal --no-header --no-annotate --generate-hashes \
		$(LOCK) docs/site.in -o docs/site.lock

demo: setup
	@# A story's words recur, so a small vocabulary of whole words lets a short run reach coherence.
	@$(BIN)/transformer-norms train study=demo data=stories data.documents=6000 \
		data.val_tokens=32768 tokenizer=bpe tokenizer.vocab_size=512 trainer.steps=600
	@$(BIN)/transformer-norms sample demo --prompt "Emma was a brave girl from" \
		--tokens 300 --temperature 0.9 | fold -s -w 78
	@echo; echo "next, in two minutes, on the same text and with the same batches:"
	@echo "  source .venv/bin/activate"
	@echo "  python train.py config=demo/rmsnorm-pre placement=post"
	@echo "  transformer-norms report demo"

test: setup
	@# pytest's own assertions would show more, but each worker would rewrite them for seconds.
	@$(BIN)/python -m pytest --assert=plain --showlocals

nightly: setup
	@test -n "$(AREA)" || { echo "make nightly AREA=name; areas are those of tests/helpers/areas.py"; exit 2; }
	@$(BIN)/python -m pytest --nightly $(AREA)

check: setup
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	@$(BIN)/python docs/tables.py docs/catalogue.md --check
	@$(BIN)/python docs/links.py
	@$(BIN)/python tests/helpers/rooms.py

# Its packages lie apart: nothing else needs them. Material for MkDocs is kept until May 2027; its
# successor, Zensical, reads mkdocs.yml as well.
site: .venv/site/installed
	@NO_MKDOCS_2_WARNING=1 .venv/site/bin/python -m mkdocs build --quiet --strict
	@echo "python -m http.server --directory outputs/site"

.venv/site/installed: docs/site.lock
	@test -x .venv/site/bin/python || $(PYTHON) -m venv .venv/site
	@.venv/site/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

tables: setup
	@$(BIN)/python docs/tables.py docs/catalogue.md
	@$(BIN)/python docs/licences.py docs/licences.md

format: setup
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

experiments-report: setup
	@$(BIN)/python experiments/results.py

benchmark: setup
	@mkdir -p $(MEASURED)
	$(BIN)/python benchmarks/step.py --seconds 25 --out $(MEASURED)/step.json
	$(BIN)/python benchmarks/norms.py --compile --seconds 3 --out $(MEASURED)/norms.json
	$(BIN)/python benchmarks/variants.py --seconds 1 --out $(MEASURED)/variants.json
	$(BIN)/python benchmarks/startup.py --out $(MEASURED)/startup.json
	$(BIN)/python benchmarks/memory.py --rounds 2 --out $(MEASURED)/memory.json
	$(BIN)/python benchmarks/growth.py --out $(MEASURED)/growth.json
	$(BIN)/python benchmarks/sweep.py --steps 20 --out $(MEASURED)/sweep.json data.val_tokens=16384
	$(BIN)/python benchmarks/watching.py --seconds 15 --out $(MEASURED)/watching.json
	$(BIN)/python benchmarks/checkpoint.py --sizes 4-128-128-16-512 --seconds 20 --out $(MEASURED)/checkpoint.json
	$(BIN)/python benchmarks/ranks.py --seconds 20 --out $(MEASURED)/ranks.json
	$(BIN)/python benchmarks/busy.py --loops 0,2 --rounds 5 --seconds 0.5 --out $(MEASURED)/busy.json

dist:
	@tag=v$$($(PYTHON) -c 'import transformer_norms; print(transformer_norms.__version__)'); \
	git describe --exact-match --tags --match "$$tag" >/dev/null 2>&1 && git diff --quiet HEAD || \
		{ echo "make dist: check out the tag $$tag without changes"; exit 2; }
	@$(PYTHON) -m venv dist/venv && dist/venv/bin/python -m pip install --quiet build twine
	@rm -f dist/transformer_norms-* && dist/venv/bin/python -m build --outdir dist .
	@dist/venv/bin/twine check --strict dist/transformer_norms-*

publish: dist
	dist/venv/bin/twine upload dist/transformer_norms-*

clean:
	rm -rf .venv
