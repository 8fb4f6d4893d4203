# SPDX-License-Identifier: Apache-2.0
#
# Each target installs what it needs (Debian packages, by name) and is quick
# when there is nothing to do. Installing needs root, and so do test and bench.

GO       ?= go
BUILD    := build
MUSTANG  := $(BUILD)/mustang
RESULTS  ?= $(BUILD)/results

# Where make install puts the CNI plugin and its configuration, and what it tells
# mustang cni install beside that.
CNI_BIN   ?= /opt/cni/bin
CNI_CONF  ?= /etc/cni/net.d
CNI_FLAGS ?= --link auto --masquerade

# The Debian package: its version sorts before any release, by the time of the commit.
DEB_ARCH       ?= amd64
VERSION        ?= $(shell git log -1 --date=format:%Y%m%d.%H%M%S --format=0~git%cd.%h)
DEB_MAINTAINER ?= $(shell git log -1 --format='%an <%ae>')

# Debian packages: what each task needs on a bare Debian 12.
GENERATE_PACKAGES := clang-19 llvm-19 libbpf-dev linux-libc-dev
BENCH_PACKAGES    := iptables nftables openvswitch-switch docker.io containernetworking-plugins
VM_PACKAGES       := qemu-system-x86 qemu-system-common kmod
CNI_PACKAGES      := containernetworking-plugins containerd runc podman busybox-static
TEST_PACKAGES     := $(BENCH_PACKAGES) $(VM_PACKAGES) $(CNI_PACKAGES) iproute2 ethtool iperf3 chromium fonts-dejavu-core

# Packages whose tests ask the kernel most.
VM_TESTS := $(addprefix ./,$(wildcard internal/nl internal/podlink internal/shaper internal/datapath internal/lab internal/tun internal/cni))

# The tests that this kernel can't run, or only in part: a list that test-host writes.
SKIPPED := $(BUILD)/skipped-tests

BPF_SOURCES := $(shell find bpf -name '*.c' -o -name '*.h')
GENERATED   := $(BUILD)/generated.stamp

.PHONY: all setup generate build install uninstall deb lint test test-host test-vm test-vm-all bench clean
.DELETE_ON_ERROR:

all: build

setup: $(BUILD)/packages-generate.stamp $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp

$(BUILD)/packages-generate.stamp: PACKAGES = $(GENERATE_PACKAGES)
$(BUILD)/packages-bench.stamp: PACKAGES = $(BENCH_PACKAGES)
$(BUILD)/packages-test.stamp: PACKAGES = $(TEST_PACKAGES)
$(BUILD)/packages-%.stamp: Makefile .ci/install
	@mkdir -p $(BUILD)
	@.ci/install $(PACKAGES)
	@touch $@

$(BUILD)/modules.stamp: go.mod go.sum
	@mkdir -p $(BUILD)
	$(GO) mod download
	@touch $@

# The BPF objects and their Go are committed: build needs no clang.
generate: $(GENERATED)

$(GENERATED): $(BUILD)/packages-generate.stamp $(wildcard internal/*/generate.go) $(BPF_SOURCES)
	$(GO) generate ./...
	@touch $@

# Without C the program is static, as it must be to start in the guest of bench --vm.
build:
	@mkdir -p $(BUILD)
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BUILD)/ ./cmd/mustang ./cmd/mustang-cni

install: build
	$(MUSTANG) cni install --bin-dir $(CNI_BIN) --conf-dir $(CNI_CONF) $(CNI_FLAGS)

uninstall: build
	$(MUSTANG) cni uninstall --bin-dir $(CNI_BIN) --conf-dir $(CNI_CONF)

# nfpm has a module file of its own: it needs some sixty modules.
deb:
	@mkdir -p $(BUILD)/deb
	CGO_ENABLED=0 GOARCH=$(DEB_ARCH) $(GO) build -trimpath -ldflags '-s -w' -o $(BUILD)/deb/ ./cmd/mustang ./cmd/mustang-cni
	ARCH='$(DEB_ARCH)' VERSION='$(VERSION)' MAINTAINER='$(DEB_MAINTAINER)' PROGRAMS='$(BUILD)/deb' \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(GO) tool -modfile=packaging/nfpm.mod nfpm package -f packaging/nfpm.yaml -t '$(BUILD)/mustang_$(VERSION)_$(DEB_ARCH).deb'

lint:
	@unformatted=$$(gofmt -l bpf cmd internal test); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) tool revive -config revive.toml -set_exit_status ./...
	$(GO) tool depguard ./...

test: test-host test-vm

test-host: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp build
	@: > $(SKIPPED)
	MUSTANG_SKIPPED=$(abspath $(SKIPPED)) $(GO) test -count=1 -timeout 20m ./...

# In guests whose kernel has every link mode: what test-host had to leave out.
test-vm: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp
	$(GO) run ./test/vm -timeout 45m -memory 4096 -skipped $(SKIPPED) test

# All tests of these packages, in guests.
test-vm-all: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp
	$(GO) run ./test/vm -timeout 90m test $(VM_TESTS)

bench: $(BUILD)/packages-bench.stamp build
	$(MUSTANG) bench pod-links --out $(RESULTS)
	$(MUSTANG) report $(RESULTS)

clean:
	rm -rf $(BUILD)
