# Plain pip and venv; no conda. Everything that is installed goes into .venv in this folder.
# Paths below are relative, so a folder with blanks in its name is fine.
#
#   make setup [PYTHON=python3.12] [TORCH=cpu|cuda]
#   make run [QUICK=1]     make lab     make lint
#   make test     make test-long     make test-browser     make test-compat     make test-matrix

PYTHON ?= python3
TORCH ?=
QUICK ?=
CPU_INDEX := https://download.pytorch.org/whl/cpu
COMPAT := 4.57.6

PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMP := .venv/.dartree-setup
# True where a torch is installed that is not of the build that TORCH asks for.
HAS_OTHER_TORCH := import sys, torch; sys.exit((torch.version.cuda is None) != ("$(TORCH)" == "cuda"))
COMPAT_PY := .venv-compat/bin/python
COMPAT_STAMP := .venv-compat/.dartree-setup

# Another environment that happens to be active must not leak into this one.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX
export PIP_REQUIRE_VIRTUALENV := 0

.DELETE_ON_ERROR:
.PHONY: help setup run test test-long test-browser test-compat test-matrix lint lab clean

help:
	@sed -n 's/^#   *//p' Makefile

# The stamp remembers where and with which torch build the set-up was made: a moved folder or another
# TORCH sets up again, a second plain call finds it newer than what it depends on and runs no pip.
export DARTREE_HERE := $(CURDIR)
ifneq "$(shell sed -n 1p $(STAMP) 2>/dev/null)" "$(CURDIR)"
$(STAMP): again
else ifneq "$(TORCH)" ""
ifneq "$(shell sed -n 2p $(STAMP) 2>/dev/null)" "torch $(TORCH)"
$(STAMP): again
endif
endif
.PHONY: again
again:

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "dartree needs Python >= 3.10: try make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
ifneq "$(TORCH)" ""
	@$(PY) -c '$(HAS_OTHER_TORCH)' 2>/dev/null && $(PIP) uninstall --yes torch || true
endif
ifeq "$(TORCH)" "cpu"
	$(PIP) install --no-deps --index-url $(CPU_INDEX) \
	  "$$(sed -n 's/^\(torch==[0-9.]*\).*/\1/p' requirements.lock)"
endif
	$(PIP) install -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
ifeq "$(TORCH)" "cuda"
	@$(PY) -c 'import sys, torch; sys.exit(not torch.version.cuda)' || { \
	  echo "TORCH=cuda: pip found only a torch without CUDA; see pytorch.org for this system" >&2; \
	  exit 1; }
endif
	@printf '%s\ntorch %s\n' "$$DARTREE_HERE" "$(TORCH)" > $(STAMP)

run: setup
	@$(PY) -m dartree figures $(if $(filter-out 0,$(QUICK)),--quick)

test: setup
	@echo "the explorers' tests are left out here: make test-browser (it needs chromium)"
	@$(PY) -m pytest

BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
# Installs Playwright's client and, in CI, Debian's chromium; what cannot be had is said in one line
# and the tests are skipped.
test-browser: setup
	@$(PY) -c 'import playwright' 2>/dev/null || $(PIP) install -q 'playwright==1.65.2' || \
	  echo "playwright cannot be installed here: the explorers' tests are skipped"
	@command -v $(BROWSERS) >/dev/null || [ "$$CI" != true ] || \
	  { timeout 60 apt-get update -q && timeout 180 apt-get install -q -y --no-install-recommends chromium; } || \
	  echo "chromium cannot be installed here: the explorers' tests are skipped"
	@$(PY) -m pytest -m browser -rs tests/browser

test-long: setup
	@$(PY) -m pytest -m long

# The oldest transformers that is supported, in an environment of its own.
$(COMPAT_STAMP): requirements.lock pyproject.toml Makefile
	$(PYTHON) -m venv .venv-compat
	grep -v -i -E '^(transformers|huggingface-hub|tokenizers|typer|httpx2|httpcore2|truststore)==' \
	  requirements.lock > .venv-compat/requirements.txt
	echo 'transformers==$(COMPAT)' >> .venv-compat/requirements.txt
	$(COMPAT_PY) -m pip --disable-pip-version-check install -r .venv-compat/requirements.txt
	$(COMPAT_PY) -m pip --disable-pip-version-check install --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@touch $(COMPAT_STAMP)

test-compat: $(COMPAT_STAMP)
	@$(COMPAT_PY) -m pytest

# Both ends of the supported range: the locked transformers (the newest) and the oldest.
test-matrix: test test-compat

lint: setup
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

lab: setup
	@$(PY) -m jupyterlab notebooks

clean:
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find . -name .venv -prune -o -name .venv-compat -prune -o -name .git -prune -o \
	  -name __pycache__ -type d -exec rm -rf {} +
