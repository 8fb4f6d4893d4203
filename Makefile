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

# The version is that of CHANGELOG.md; packaging/version says how it names other commits. make release builds for RELEASE_ARCHS.
ifndef VERSION
VERSION        := $(shell packaging/version)
endif
ARCH           ?= $(shell $(GO) env GOARCH)
RELEASE        := $(BUILD)/release
RELEASE_ARCHS  ?= amd64 arm64
DEB_MAINTAINER ?= $(shell git log -1 --format='%an <%ae>')
LDFLAGS         = -X mustang/internal/version.stamp=$(VERSION)
# The time in all that a release has, so that the same commit makes the same files.
RELEASE_TIME    = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct)

# Debian packages: what each task needs on a bare Debian 12. make bench runs suite pod-links;
# bench all needs SUITE_PACKAGES and VM_PACKAGES too.
LINT_PACKAGES     := g++
GENERATE_PACKAGES := clang-19 clang-format-19 lld-19 llvm-19 libbpf-dev linux-libc-dev
BENCH_PACKAGES    := iptables nftables openvswitch-switch
SUITE_PACKAGES    := docker.io containernetworking-plugins
VM_PACKAGES       := qemu-system-x86 qemu-system-common kmod zstd
CNI_PACKAGES      := containernetworking-plugins containerd runc podman busybox-static
K8S_PACKAGES      := containernetworking-plugins containerd runc busybox-static iproute2 ipset
RELEASE_PACKAGES  := lintian qemu-user-static
TEST_PACKAGES     := $(BENCH_PACKAGES) $(SUITE_PACKAGES) $(VM_PACKAGES) $(CNI_PACKAGES) lintian iproute2 ethtool iperf3 sockperf openssh-server openssh-client chromium fonts-dejavu-core strace prometheus

# Packages whose tests depend most on the kernel.
GUEST_PACKAGES := ./internal/netns ./internal/rtnl ./internal/netstat ./internal/linkinfo ./internal/qdisc ./internal/podlink \
	./internal/datapath ./internal/lab ./internal/tun ./internal/cni ./internal/explain ./internal/nodenet

# The tests that lacked a kernel feature here, written by test-kernel and test-others. test-guest runs those that match
# GUEST_TESTS, all of test-kernel: a few of each link mode. test-guest-skipped runs all of them.
SKIPPED        := $(BUILD)/skipped-tests
SKIPPED_OTHERS := $(BUILD)/skipped-tests-of-others
GUEST_TESTS    := ^Test(Conformance/(ipvlan-l2|ipvlan-l3|netkit)(/socket_and_per_packet.*)?|TwoHosts/(ipvlan-l2|netkit|ovs-internal/vxlan)(/.*)?|$\
	Traffic/(ipvlan-l2|netkit|veth/SCTP)|MixedTraffic/ipvlan-l2_and_macvlan|Uplink/(ipvlan-l2|netkit)|Add/(ipvlan-l2|netkit)|ManyServices/ipvs|$\
	LinkKinds/.*|LinkNetkit.*|Limit/.*|LimitWay|OtherPrograms|EmulateDelay|AttachedNetkit|Check/.*|Bandwidth/.*|BandwidthHolds/netkit|WireGuard.*|AgentEncrypts)$$

# Of kernels newer than the machine's and the guest's: test-newest-kernel.
NEWEST_TESTS := ^Test(TakesBigIPv6|BigTCP|BigTCPOf.*|BigTCPKeeps.*|Remote(Pods|Links|Wire)|Reach)$$|^TestBigTCPReachesServices$$/.*/^(kernel|per_packet|iptables|nftables)$$

# How long each fuzz target runs.
FUZZTIME ?= 10s

C_SOURCES := $(shell find bpf cni -name '*.c' -o -name '*.h')
GENERATED   := $(BUILD)/generated.stamp

.PHONY: all help setup generate page build install uninstall programs history extras deb image release release-arch publish manifest lint bench clean
.PHONY: test-k8s test-k8s-short test-k8s-table k8s
.PHONY: test test-unit test-host test-kernel test-kernel-then-guest test-others test-guest test-all test-long test-soak test-race test-fuzz test-guest-skipped test-guest-all test-newest-kernel
.DELETE_ON_ERROR:

all: build

help:
	@echo 'make bench          measures the links of pods, and writes build/results/latest/report.html'
	@echo 'make build          puts mustang and mustang-cni into build; make install installs the CNI plugin'
	@echo 'make image, deb     the container image and the Debian package; make release: all files of a release'
	@echo 'make test           the tests, on this kernel and in virtual machines; make lint: the linters'
	@echo 'make generate       BPF objects and generated Go; make clean removes build'

setup: $(BUILD)/packages-generate.stamp $(BUILD)/packages-lint.stamp $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp

$(BUILD)/packages-generate.stamp: PACKAGES = $(GENERATE_PACKAGES)
$(BUILD)/packages-lint.stamp: PACKAGES = $(LINT_PACKAGES)
$(BUILD)/packages-bench.stamp: PACKAGES = $(BENCH_PACKAGES)
$(BUILD)/packages-test.stamp: PACKAGES = $(TEST_PACKAGES)
$(BUILD)/packages-k8s.stamp: PACKAGES = $(K8S_PACKAGES)
$(BUILD)/packages-release.stamp: PACKAGES = $(RELEASE_PACKAGES)
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

$(GENERATED): $(BUILD)/packages-generate.stamp $(shell grep -rl --include='*.go' '^//go:generate ' internal) $(C_SOURCES)
	$(GO) generate ./...
	@touch $@

# The JavaScript of the report's page: libraries of npm in the versions of the lock file, and esbuild, which has a module file of
# its own. The file is written at once: another build may read it.
PAGE    := internal/report/html
PAGE_JS := $(PAGE)/bundle/page.js
NPM     := build/npm

page: $(PAGE_JS)

$(NPM).stamp: $(PAGE)/script/package.json $(PAGE)/script/package-lock.json
	@command -v npm >/dev/null || .ci/install nodejs npm
	@mkdir -p $(NPM)
	@cp $^ $(NPM)
	@cd $(NPM) && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

# What page.js has of npm, whose licences stand at its end.
PAGE_LIBRARIES := @floating-ui/core @floating-ui/dom @floating-ui/utils @tanstack/store @tanstack/table-core d3-dsv

$(PAGE_JS): $(wildcard $(PAGE)/script/*.js) $(NPM).stamp packaging/esbuild.mod
	@NODE_PATH=$(NPM)/node_modules $(GO) tool -modfile=packaging/esbuild.mod esbuild $(PAGE)/script/page.js \
		--bundle --minify --charset=utf8 --format=iife --target=es2022 --log-level=warning --outfile=$@.new
	@cd $(NPM)/node_modules && { echo '/*'; for library in $(PAGE_LIBRARIES); do echo "$$library:"; cat $$library/LICENSE; done; echo '*/'; } >>$(CURDIR)/$@.new
	@mv $@.new $@

build: page
	@mkdir -p $(BUILD)
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BUILD)/ ./cmd/mustang ./cmd/mustang-cni

install: build
	$(MUSTANG) cni install --bin-dir $(CNI_BIN) --conf-dir $(CNI_CONF) $(CNI_FLAGS)

uninstall: build
	$(MUSTANG) cni uninstall --bin-dir $(CNI_BIN) --conf-dir $(CNI_CONF)

# The programs of packages, images and releases, without symbols.
PROGRAMS = $(BUILD)/programs/$(ARCH)

programs: page
	@mkdir -p $(PROGRAMS)
	GOARCH=$(ARCH) $(GO) build -ldflags '-s -w $(LDFLAGS)' -o $(PROGRAMS)/ ./cmd/mustang ./cmd/mustang-cni

# The licences of what is in the programs, for packages, images and archives.
LICENCES := $(BUILD)/THIRD-PARTY-LICENCES

licences: $(BUILD)/modules.stamp
	packaging/licences ./cmd/mustang ./cmd/mustang-cni >$(LICENCES)

# What packages have beside the programs: manual pages and completions, which the program itself writes, and Debian's change log.
EXTRAS    := $(BUILD)/extras
HOST_ARCH := $(shell $(GO) env GOHOSTARCH)
HERE      := $(BUILD)/programs/$(HOST_ARCH)/mustang

# The date and the maintainer of a package are those of the last commit.
history:
	@git log -1 --format= 2>/dev/null || { echo 'make deb and make release need the git repository: a package has the date and the author of its last commit' >&2; exit 1; }

extras: history programs licences
	@[ '$(ARCH)' = '$(HOST_ARCH)' ] || $(MAKE) programs ARCH=$(HOST_ARCH) VERSION='$(VERSION)'
	@rm -rf $(EXTRAS) && mkdir -p $(EXTRAS)
	env -u MUSTANG_BPF_ROOT -u MUSTANG_STATE_DIR $(RELEASE_TIME) $(HERE) man $(EXTRAS)/man
	gzip -9n $(EXTRAS)/man/*
	for shell in bash zsh fish; do $(HERE) completion $$shell >$(EXTRAS)/completion.$$shell || exit 1; done
	{ printf 'mustang (%s) unstable; urgency=medium\n\n' '$(VERSION)'; \
		printf '  * What changed is in /usr/share/doc/mustang/CHANGELOG.md.gz.\n\n'; \
		printf ' -- %s  %s\n' '$(DEB_MAINTAINER)' "$$(git log -1 --format=%cD)"; } | gzip -9n >$(EXTRAS)/changelog.gz
	gzip -9nc CHANGELOG.md >$(EXTRAS)/CHANGELOG.md.gz
	gzip -9nc $(LICENCES) >$(EXTRAS)/THIRD-PARTY-LICENCES.gz

# nfpm has a module file of its own: it needs some sixty modules.
DEB ?= $(BUILD)/mustang_$(VERSION)_$(ARCH).deb

deb: history programs extras
	ARCH='$(ARCH)' VERSION='$(VERSION)' MAINTAINER='$(DEB_MAINTAINER)' PROGRAMS='$(PROGRAMS)' EXTRAS='$(EXTRAS)' $(RELEASE_TIME) \
		$(GO) tool -modfile=packaging/nfpm.mod nfpm package -f packaging/nfpm.yaml -t '$(DEB)'

# The container image, without a daemon: an OCI archive, also for docker load and ctr images import. It has a module file of its own.
IMAGE      ?= docker.io/library/mustang:$(shell sed -n 's/^appVersion: //p' packaging/chart/Chart.yaml)
IMAGE_FILE ?= $(BUILD)/mustang-image.tar

image: programs licences
	packaging/image/programs.sh '$(ARCH)' '$(abspath $(PROGRAMS))/root'
	cd packaging/image && $(RELEASE_TIME) $(GO) run . -arch '$(ARCH)' -tag '$(IMAGE)' -version '$(VERSION)' -doc '$(abspath $(LICENCES))' -doc '$(CURDIR)/LICENSE' -root '$(abspath $(PROGRAMS))/root' \
		-o '$(abspath $(IMAGE_FILE))' '$(abspath $(PROGRAMS))/mustang' '$(abspath $(PROGRAMS))/mustang-cni'

# What is in the programs, in CycloneDX: cyclonedx-gomod reads it from the binaries. It has a module file of its own.
SBOM := $(GO) tool -modfile=packaging/sbom.mod cyclonedx-gomod bin -json -std -licenses -noserial -notimestamp

# All files of a release, for RELEASE_ARCHS, checked: lintian has nothing to say, and each program starts, in emulation
# where it is for another processor.
release: history $(BUILD)/packages-release.stamp $(BUILD)/modules.stamp
	rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	for arch in $(RELEASE_ARCHS); do $(MAKE) release-arch ARCH=$$arch VERSION='$(VERSION)' || exit 1; done
	cd $(RELEASE) && sha256sum -- * >SHA256SUMS
	lintian --fail-on error,warning --tag-display-limit 0 $(RELEASE)/*.deb

QEMU_amd64 := qemu-x86_64-static
QEMU_arm64 := qemu-aarch64-static

release-arch: NAME = $(RELEASE)/mustang_$(VERSION)_$(ARCH)
release-arch: programs extras
	$(MAKE) deb DEB=$(NAME).deb
	$(MAKE) image IMAGE_FILE=$(NAME)_image.tar
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$$(git log -1 --format=%ct)" --transform='s|^|mustang-$(VERSION)/|' -cf - \
		-C $(PROGRAMS) mustang mustang-cni -C $(CURDIR) LICENSE README.md CONTRIBUTING.md CHANGELOG.md docs deploy packaging/chart -C $(abspath $(BUILD)) $(notdir $(LICENCES)) -C $(abspath $(EXTRAS)) \
		man completion.bash completion.fish completion.zsh | gzip -9n >$(NAME).tar.gz
	for program in mustang mustang-cni; do \
		$(SBOM) -version 'v$(VERSION)' -output $(RELEASE)/$${program}_$(VERSION)_$(ARCH).cdx.json $(PROGRAMS)/$$program || exit 1; \
	done
	$(QEMU_$(ARCH)) $(PROGRAMS)/mustang version | grep -F 'mustang $(VERSION) go' | grep -F 'linux/$(ARCH)'
	$(QEMU_$(ARCH)) $(PROGRAMS)/mustang-cni 2>&1 </dev/null | grep -F 'CNI plugin mustang-cni $(VERSION)'
	CNI_COMMAND=VERSION $(QEMU_$(ARCH)) internal/cni/install/client_$(ARCH) | grep -F 'cannot run $(CURDIR)/internal/cni/install/mustang-cni-full'

# The tree for the repository that packaging/publish.env names.
publish:
	packaging/publish $(BUILD)/publish

# The manifest is what Helm makes of the chart. Helm needs some two hundred modules.
HELM := $(GO) tool -modfile=packaging/helm.mod helm

manifest:
	{ echo '# Made of packaging/chart by make manifest. Replace API_SERVER: docs/kubernetes.md.'; \
		$(HELM) template mustang packaging/chart -n kube-system --kube-version 1.34 --set apiServer.host=API_SERVER; } >deploy/mustang.yaml

# Vale has a module file of its own, and needs a compiler of C++. It reads the pages that users read.
VALE  := CGO_ENABLED=1 CC=clang-19 CXX=g++ $(GO) tool -modfile=packaging/vale.mod vale --config packaging/vale/vale.ini
PAGES  = README.md CONTRIBUTING.md CHANGELOG.md docs/*.md docs/reference/*.md

lint: $(BUILD)/packages-generate.stamp $(BUILD)/packages-lint.stamp
	clang-format-19 --dry-run -Werror $(C_SOURCES)
	@unformatted=$$(gofmt -l bpf cmd internal test); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) tool revive -config revive.toml -set_exit_status ./...
	$(GO) tool depguard ./...
	$(GO) tool go-errorlint ./...
	$(VALE) $(PAGES)

# Packages that several goroutines or processes use, with tests that need no root.
RACE_PACKAGES := ./cmd/mustang/internal/node ./internal/agent ./internal/kube ./internal/cni/netconf ./internal/cni/record \
	./internal/ipam ./internal/load ./internal/lock ./internal/load/worker ./internal/policy \
	./internal/policy/manifest ./internal/result ./internal/service ./internal/service/health \
	./internal/service/manifest

# Without root and without network namespaces.
test-unit: $(BUILD)/modules.stamp page
	MUSTANG_TIER=unit $(GO) test ./...

# Likewise, with the race detector, which needs a C compiler.
test-race: $(BUILD)/packages-generate.stamp $(BUILD)/modules.stamp page
	MUSTANG_TIER=unit CGO_ENABLED=1 CC=clang-19 $(GO) test -race -timeout 10m $(RACE_PACKAGES)

# Tests wait often: the tests that guests need not wait for run beside them and beside those of the kernel, with lower priority.
test: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp build
	$(MAKE) --jobs=2 test-kernel-then-guest test-others

test-kernel-then-guest: test-kernel
	$(MAKE) test-guest

test-host: test-kernel test-others

# Runs the tests of packages. Tests wait for the kernel often: more of them run at once than there are CPUs. With RERUN=1, a test that
# failed runs once more, alone, and build/flaky.* lists it. make lint vets. gotestsum has a module file of its own.
GOTESTSUM := $(GO) tool -modfile=packaging/gotestsum.mod gotestsum --format standard-quiet --hide-summary=skipped --rerun-fails=1 --rerun-fails-run-root-test
RUN_TESTS  = $(if $(RERUN),$(GOTESTSUM) --rerun-fails-report $(BUILD)/flaky.$@ --jsonfile $(BUILD)/$@.json --packages="$(1)" --,$(GO) test) \
	-count=1 -vet=off -p 4 -parallel 3 -timeout 20m $(if $(RERUN),,$(1))

# The packages whose tests guests run too.
KERNEL_PACKAGES := ./cmd/mustang $(GUEST_PACKAGES)

test-kernel: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp build
	@: > $(SKIPPED)
	MUSTANG_SKIPPED=$(abspath $(SKIPPED)) $(call RUN_TESTS,$(KERNEL_PACKAGES))

test-others: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp build
	@: > $(SKIPPED_OTHERS)
	MUSTANG_SKIPPED=$(abspath $(SKIPPED_OTHERS)) nice -n 5 $(call RUN_TESTS,$$($(GO) list ./... | grep -vxF "$$($(GO) list $(KERNEL_PACKAGES))"))
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

# In guests with the newest kernel of Debian's backports.
test-newest-kernel: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp
	$(GO) run ./test/vm -newest -timeout 10m -memory 4096 -run '$(NEWEST_TESTS)' test ./internal/rtnl ./internal/podlink ./internal/lab ./internal/nodenet

test-guest-all: $(BUILD)/packages-test.stamp $(BUILD)/modules.stamp
	$(GO) run ./test/vm -timeout 90m test $(GUEST_PACKAGES)

# A real Kubernetes in namespaces, with Mustang as its network. The first run builds Kubernetes, into K8S_CACHE.
K8S_CACHE   ?= /var/cache/mustang/k8s
K8S_SUMMARY ?= test/k8s/specs.json
K8S         := $(BUILD)/k8s -cache $(K8S_CACHE)

k8s: $(BUILD)/packages-k8s.stamp $(BUILD)/modules.stamp image
	$(GO) build -o $(BUILD)/ ./test/k8s
	$(GO) build -modfile=packaging/helm.mod -o $(BUILD)/helm helm.sh/helm/v3/cmd/helm

# Every set-up: hours. All runs are done, and any failure fails.
test-k8s: k8s
	status=0; \
	$(K8S) -record $(K8S_SUMMARY) -link veth,bridge,macvlan -family ipv4,ipv6,dual -nodes one,native,vxlan test conformance || status=1; \
	$(K8S) -record $(K8S_SUMMARY) -link veth,bridge,macvlan -nodes three,vxlan test others || status=1; \
	$(K8S) -record $(K8S_SUMMARY) -link veth,bridge,macvlan test netpol || status=1; \
	$(K8S) -record $(K8S_SUMMARY) -nodes native netpol-api v1beta1 || status=1; \
	$(K8S) -record $(K8S_SUMMARY) -nodes native netpol-api v1alpha2 || status=1; \
	$(K8S) kubeadm || status=1; \
	$(K8S) kill 100 || status=1; \
	$(K8S) -nodes vxlan migrate beside || status=1; \
	$(K8S) -nodes vxlan migrate network || status=1; \
	$(K8S) -nodes native migrate network || status=1; \
	$(MAKE) test-k8s-table && exit $$status

test-k8s-short: k8s
	$(K8S) test short

# The tables of test/k8s/specs.md, of what test-k8s has recorded.
test-k8s-table:
	$(GO) run ./test/k8s -record $(K8S_SUMMARY) table test/k8s/specs.md

bench: $(BUILD)/packages-bench.stamp build
	$(MUSTANG) bench pod-links --out $(RESULTS)

clean:
	rm -rf $(BUILD)
