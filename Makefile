# SPDX-License-Identifier: Apache-2.0
#
# Each target installs what it needs (Debian packages, by name) and is quick
# when there is nothing to do. Installing needs root, and so do test and bench.

GO       ?= go
BUILD    := build
MUSTANG  := $(BUILD)/mustang
RESULTS  ?= $(BUILD)/results

# One form of each package, which build, lint and tests share. Programs without C are static, as they must be to start in
# guests and containers.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath
export CGO_ENABLED = 0

# Where make install puts the CNI plugin and its configuration, and what it tells
# mustang cni install beside that.
CNI_BIN   ?= /opt/cni/bin
CNI_CONF  ?= /etc/cni/net.d
CNI_FLAGS ?= --link auto --masquerade

# The Debian package: its version sorts before any release, by the time of the commit.
DEB_ARCH       ?= amd64
VERSION        ?= $(shell git log -1 --date=format:%Y%m%d.%H%M%S --format=0~git%cd.%h)
DEB_MAINTAINER ?= $(shell git log -1 --format='%an <%ae>')

# Debian packages: what each task needs on a bare Debian 12. make bench runs suite pod-links;
# bench all needs SUITE_PACKAGES and VM_PACKAGES too.
GENERATE_PACKAGES := clang-19 clang-format-19 llvm-19 libbpf-dev linux-libc-dev
BENCH_PACKAGES    := iptables nftables openvswitch-switch
SUITE_PACKAGES    := docker.io containernetworking-plugins
VM_PACKAGES       := qemu-system-x86 qemu-system-common kmod zstd
CNI_PACKAGES      := containernetworking-plugins containerd runc podman busybox-static
K8S_PACKAGES      := containernetworking-plugins containerd runc busybox-static iproute2
TEST_PACKAGES     := $(BENCH_PACKAGES) $(SUITE_PACKAGES) $(VM_PACKAGES) $(CNI_PACKAGES) iproute2 ethtool iperf3 sockperf openssh-server openssh-client chromium fonts-dejavu-core strace

# Packages whose tests depend most on the kernel.
GUEST_PACKAGES := ./internal/netns ./internal/rtnl ./internal/netstat ./internal/linkinfo ./internal/qdisc ./internal/podlink \
	./internal/datapath ./internal/lab ./internal/tun ./internal/cni ./internal/explain

# The tests that lacked a kernel feature here, written by test-kernel and test-others. test-guest runs those that match
# GUEST_TESTS, all of test-kernel: one pass over each link mode and feature. test-guest-skipped runs all of them.
SKIPPED        := $(BUILD)/skipped-tests
SKIPPED_OTHERS := $(BUILD)/skipped-tests-of-others
GUEST_TESTS    := ^Test(Conformance/[^/]+(/socket_and_per_packet.*)?|TwoHosts/(ipvlan-l2|netkit|ovs-internal/vxlan)(/.*)?|Traffic/.*|MixedTraffic/ipvlan-l2_and_macvlan|$\
	Shaped/.*|Add/.*|AddOpenVSwitch/.*|Services/[^/]+/both|Ports/(ipvlan-l2|netkit)|Uplink/(ipvlan-l2|netkit)|Refuse/(ipvlan-l2|netkit)|Echo/(ipvlan-l2|netkit)|ManyServices/ipvs|$\
	HostBackend/(ipvlan-l2|netkit)|Remote/(ipvlan-l2|netkit)|Promises/.*|SCTP/(veth|bridge|macvlan|ipvlan-l2|netkit)|$\
	LinkKinds/.*|LinkNetkit.*|LinkOpenVSwitch|ProbeJSON.*|Limit/.*|LimitWay|OtherPrograms|EmulateDelay|AttachedNetkit|$\
	Check/.*|Bandwidth/.*|BandwidthHolds/(netkit|netkit-l2|ovs-veth)|StepsAgreeWithCounters/(ipvlan-l2|netkit)(/pod-ip|[+]ebpf/cluster-ip))$$

# How long each fuzz target runs.
FUZZTIME ?= 10s

BPF_SOURCES := $(shell find bpf -name '*.c' -o -name '*.h')
GENERATED   := $(BUILD)/generated.stamp

.PHONY: all setup generate build install uninstall deb image manifest lint bench clean
.PHONY: test-k8s test-k8s-short test-k8s-table k8s
.PHONY: test test-unit test-host test-kernel test-others test-guest test-all test-long test-soak test-race test-fuzz test-guest-skipped test-guest-all
.DELETE_ON_ERROR:

all: build

setup: $(BUILD)/packages-generate.stamp $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp

$(BUILD)/packages-generate.stamp: PACKAGES = $(GENERATE_PACKAGES)
$(BUILD)/packages-bench.stamp: PACKAGES = $(BENCH_PACKAGES)
$(BUILD)/packages-test.stamp: PACKAGES = $(TEST_PACKAGES)
$(BUILD)/packages-k8s.stamp: PACKAGES = $(K8S_PACKAGES)
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

$(GENERATED): $(BUILD)/packages-generate.stamp $(wildcard internal/*/generate.go internal/*/*/generate.go) $(BPF_SOURCES)
	$(GO) generate ./...
	@touch $@

build:
	@mkdir -p $(BUILD)
	$(GO) build -o $(BUILD)/ ./cmd/mustang ./cmd/mustang-cni

install: build
	$(MUSTANG) cni install --bin-dir $(CNI_BIN) --conf-dir $(CNI_CONF) $(CNI_FLAGS)

uninstall: build
	$(MUSTANG) cni uninstall --bin-dir $(CNI_BIN) --conf-dir $(CNI_CONF)

# nfpm has a module file of its own: it needs some sixty modules.
deb:
	@mkdir -p $(BUILD)/deb
	GOARCH=$(DEB_ARCH) $(GO) build -ldflags '-s -w' -o $(BUILD)/deb/ ./cmd/mustang ./cmd/mustang-cni
	ARCH='$(DEB_ARCH)' VERSION='$(VERSION)' MAINTAINER='$(DEB_MAINTAINER)' PROGRAMS='$(BUILD)/deb' \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(GO) tool -modfile=packaging/nfpm.mod nfpm package -f packaging/nfpm.yaml -t '$(BUILD)/mustang_$(VERSION)_$(DEB_ARCH).deb'

# The container image, without a daemon: an archive for docker load and ctr images import. It has a module file of its own.
IMAGE ?= docker.io/library/mustang:$(shell sed -n 's/^appVersion: //p' packaging/chart/Chart.yaml)

image:
	@mkdir -p $(BUILD)/image
	GOARCH=$(DEB_ARCH) $(GO) build -ldflags '-s -w' -o $(BUILD)/image/ ./cmd/mustang ./cmd/mustang-cni
	cd packaging/image && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(GO) run . -arch '$(DEB_ARCH)' -tag '$(IMAGE)' \
		-o '$(CURDIR)/$(BUILD)/mustang-image.tar' '$(CURDIR)/$(BUILD)/image/mustang' '$(CURDIR)/$(BUILD)/image/mustang-cni'

# The manifest is what Helm makes of the chart. Helm needs some two hundred modules.
HELM := $(GO) tool -modfile=packaging/helm.mod helm

manifest:
	{ echo '# Made of packaging/chart by make manifest. Replace API_SERVER: docs/kubernetes.md.'; \
		$(HELM) template mustang packaging/chart -n kube-system --kube-version 1.34 --set apiServer.host=API_SERVER; } >deploy/mustang.yaml

lint: $(BUILD)/packages-generate.stamp
	clang-format-19 --dry-run -Werror $(BPF_SOURCES)
	@unformatted=$$(gofmt -l bpf cmd internal test); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) tool revive -config revive.toml -set_exit_status ./...
	$(GO) tool depguard ./...
	$(GO) tool go-errorlint ./...

# Packages that several goroutines or processes use, with tests that need no root.
RACE_PACKAGES := ./cmd/mustang/internal/svc ./internal/agent ./internal/kube ./internal/cni/netconf ./internal/cni/record ./internal/datapath/connections \
	./internal/datapath/dirlock ./internal/ipam ./internal/load/heap ./internal/load/message ./internal/load/worker ./internal/policy \
	./internal/policy/manifest ./internal/result ./internal/result/compare ./internal/service ./internal/service/health \
	./internal/service/manifest ./internal/service/saved

# Without root and without network namespaces.
test-unit: $(BUILD)/modules.stamp
	MUSTANG_TIER=unit $(GO) test ./...

# Likewise, with the race detector, which needs a C compiler.
test-race: $(BUILD)/packages-generate.stamp $(BUILD)/modules.stamp
	MUSTANG_TIER=unit CGO_ENABLED=1 CC=clang-19 $(GO) test -race -timeout 10m $(RACE_PACKAGES)

# Neither tests nor guests use all CPUs all the time: the tests that guests need not wait for run beside them.
test: test-kernel
	$(MAKE) --jobs=2 test-guest test-others

test-host: test-kernel test-others

# Tests wait for the kernel often: more of them run at once than there are CPUs.
TEST_HOST := $(GO) test -count=1 -p 4 -parallel 3 -timeout 20m

# The packages whose tests guests run too.
KERNEL_PACKAGES := ./cmd/mustang $(GUEST_PACKAGES)

test-kernel: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp build
	@: > $(SKIPPED)
	MUSTANG_SKIPPED=$(abspath $(SKIPPED)) $(TEST_HOST) $(KERNEL_PACKAGES)

test-others: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp build
	@: > $(SKIPPED_OTHERS)
	MUSTANG_SKIPPED=$(abspath $(SKIPPED_OTHERS)) $(TEST_HOST) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(KERNEL_PACKAGES))")
	@! cut -f2 $(SKIPPED_OTHERS) | grep -E '$(GUEST_TESTS)' || { echo 'tests for guests of a package that is not in KERNEL_PACKAGES'; exit 1; }
	@cat $(SKIPPED_OTHERS) >> $(SKIPPED)

# In guests whose kernel has every link mode.
test-guest: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp
	$(GO) run ./test/vm -timeout 20m -memory 4096 -skipped $(SKIPPED) -run '$(GUEST_TESTS)' test

test-all: test test-long test-race test-fuzz test-k8s-short test-guest-skipped test-guest-all

# The long form of the tests that repeat: the others do the same in test-host.
SPACE := $() $()
LONG_FILES = $(shell grep -rl --include='*_test.go' 'testkit[.]Repeats' cmd internal test)
LONG_TESTS = $(shell awk '/^func Test/ { name = $$2; sub(/[^A-Za-z0-9_].*/, "", name) } /testkit[.]Repeats/ { print name }' $(LONG_FILES))

test-long: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp build
	MUSTANG_TIER=all $(GO) test -count=1 -p 2 -parallel 4 -timeout 40m -run '^($(subst $(SPACE),|,$(strip $(LONG_TESTS))))$$' $(addprefix ./,$(sort $(dir $(LONG_FILES))))

# Thousands of connections a second for as long as SOAK says.
SOAK ?= 30m

test-soak: $(BUILD)/modules.stamp
	MUSTANG_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 24h -run '^TestSoak$$' ./test/soak

# Go before 1.27 may report the end of -fuzztime as a failure without a failing input (golang/go#75804).
test-fuzz: $(BUILD)/modules.stamp
	@mkdir -p $(BUILD)
	@grep -rl --include='*_test.go' '^func Fuzz' internal cmd | xargs -n1 dirname | sort -u | while read -r dir; do \
		for fuzz in $$($(GO) test -list '^Fuzz' ./$$dir | grep '^Fuzz'); do \
			echo "fuzz ./$$dir $$fuzz"; \
			$(GO) test -run '^$$' -fuzz "^$$fuzz\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$$dir >$(BUILD)/fuzz.log 2>&1 && continue; \
			cat $(BUILD)/fuzz.log; \
			grep -q '^    context deadline exceeded$$' $(BUILD)/fuzz.log && ! grep -q 'Failing input' $(BUILD)/fuzz.log || exit 1; \
		done || exit 1; \
	done

test-guest-skipped: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp
	$(GO) run ./test/vm -timeout 45m -memory 4096 -skipped $(SKIPPED) test

test-guest-all: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp
	$(GO) run ./test/vm -timeout 90m test $(GUEST_PACKAGES)

# A real Kubernetes in namespaces, with Mustang as its network. The first run builds Kubernetes, into K8S_CACHE.
K8S_CACHE   ?= /var/cache/mustang/k8s
K8S_SUMMARY ?= docs/kubernetes-specs.json
K8S         := $(BUILD)/k8s -cache $(K8S_CACHE)

k8s: $(BUILD)/packages-k8s.stamp $(BUILD)/modules.stamp image
	$(GO) build -o $(BUILD)/ ./test/k8s

# Every set-up: hours. All runs are done, and any failure fails.
test-k8s: k8s
	status=0; \
	$(K8S) -record $(K8S_SUMMARY) -link veth,bridge,macvlan -family ipv4,ipv6,dual -nodes one,native,vxlan test conformance || status=1; \
	$(K8S) -record $(K8S_SUMMARY) -link veth,bridge,macvlan -nodes three,vxlan test others || status=1; \
	$(K8S) -record $(K8S_SUMMARY) -link veth,bridge,macvlan test netpol || status=1; \
	$(MAKE) test-k8s-table && exit $$status

test-k8s-short: k8s
	$(K8S) test short

# The tables of docs/kubernetes-specs.md, of what test-k8s has recorded.
test-k8s-table:
	$(GO) run ./test/k8s -record $(K8S_SUMMARY) table docs/kubernetes-specs.md

bench: $(BUILD)/packages-bench.stamp build
	$(MUSTANG) bench pod-links --out $(RESULTS)

clean:
	rm -rf $(BUILD)
