# SPDX-License-Identifier: Apache-2.0
#
# 'make' lists the targets. Those that need root say so.

# sudo's PATH often lacks the place where Go is installed by default; su's lacks root's commands.
GO ?= $(firstword $(shell command -v go 2>/dev/null) $(wildcard /usr/local/go/bin/go) go)
export PATH := $(PATH):$(patsubst %/,%,$(dir $(GO))):/usr/local/sbin:/usr/sbin:/sbin
export CGO_ENABLED = 0
# The Go that is installed, or go.mod's toolchain if that is newer. Go's images and Debian's machines often have
# GOTOOLCHAIN=local, which would pass over go.mod's line.
export GOTOOLCHAIN := $(shell wanted=$$(awk '$$1 == "toolchain" { print $$2 }' go.mod); \
	local=$$(cd / && GOTOOLCHAIN=local $(GO) env GOVERSION 2>/dev/null); \
	printf '%s\n' "$$wanted" "$$local" | sort -V | tail -n 1 | grep -qxF "$$local" && echo local || echo "$$wanted")

VERSION := $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo devel)
BUILD := $(GO) build -buildvcs=false -trimpath
export GOFLAGS := $(GOFLAGS) -buildvcs=false
# The product says which commit it is of (kubernetes_build_info). The checkout may be another user's.
GIT_SAFE = GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'

ENGINE ?= docker
IMAGE ?= slipstream:$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help build test race oracle oracle-ipvs test-ebpf test-bench test-browser test-arch test-arch-kernel test-cluster test-cluster-ipvs tenants crash-sweep soak sim mutation e2e test-deploy test-apparmor build-bench image release verify-release test-release deps lint vulnerabilities fmt demo bench bench-fastpath bench-compare bench-scale bench-rules bench-ipvs bench-balance bench-observe report fuzz clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/slipstream, a static binary
	$(GIT_SAFE) $(GO) build -buildvcs=auto -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/slipstream

# bin/bench, and the programs that it starts.
build-bench: build
	cd bench && $(BUILD) -ldflags '-s -w' -o ../bin/ . ./child/...

# Tests on the host alone, where it may lack what some of them need.
HOST = $(GO) run ./test/kernel/runner -kernel host -strict=false

# Packages that start goroutines.
RACES = internal/proxy internal/source internal/fastpath internal/node internal/observe
comma = ,
empty =

test: deps build ## Install what the tests need and run them all, here and on the User Mode Linux kernels (root)
	$(GO) run ./test/kernel/runner -timeout 60m -race $(subst $(empty) $(empty),$(comma),$(RACES:%=./%/...)) ./...
	@$(MAKE) --no-print-directory test-bench test-browser
	@$(MAKE) --no-print-directory -j 2 --output-sync=target oracle test-deploy test-cluster # they often wait

race: deps ## Run the packages that start goroutines under the race detector, here alone (root)
	$(HOST) -race ./... -timeout 20m $(RACES:%=./%/...)

oracle: deps ## Compare with upstream kube-proxy on random clusters; SEED=1000 CLUSTERS=50 for others and more, MODE=nftables, iptables-legacy or iptables-nft (root)
	cd test/cluster/oracle && $(GO) run ./build tools previous
	$(HOST) -dir test/cluster/oracle -v -timeout 1h . -- $(if $(SEED),-seed $(SEED)) $(if $(CLUSTERS),-clusters $(CLUSTERS)) $(if $(MODE),-mode $(MODE))

# Only the test kernel has IPVS. Everything is built here: compiling there is slow.
# With 5,000 Services and more, kube-apiserver needs more memory mappings on the host than it gives
# a process there by default: sysctl vm.max_map_count=1000000.
UML = $(GO) run ./test/kernel/run -memory 8G -timeout 2h

oracle-ipvs: deps ## The same in IPVS mode, on the User Mode Linux kernel; SEED=1000 CLUSTERS=10, RUN=Releases (root)
	cd test/cluster/oracle && $(GO) run ./build tools previous && $(GO) test -c -o ../../../bin/oracle.test .
	$(UML) sh -c 'cd test/cluster/oracle && exec ../../../bin/oracle.test -test.v -test.timeout 2h -mode ipvs -test.run "$(or $(RUN),Oracle)" -clusters $(or $(CLUSTERS),4) $(if $(SEED),-seed $(SEED))'

test-cluster: deps build ## Test the proxy end to end on a real kube-apiserver, with several nodes, beside kube-proxy (root)
	cd test/cluster/oracle && $(GO) run ./build tools oldest
	$(HOST) -dir test/cluster -timeout 30m ./... -- -test.parallel 3

tenants: deps build ## Attack a node as a hostile tenant and write the table of docs/security.md, PHASE=12s (root)
	cd test/cluster/oracle && $(GO) run ./build tools
	$(HOST) -dir test/cluster -timeout 1h -run '^TestTenants$$' . -- -campaign $(abspath docs/security.md) $(if $(PHASE),-phase $(PHASE))

crash-sweep: deps ## Kill slipstream before each call that changes the kernel, RUN='TestCrash/nftables/start', from call FROM=1 TO=60; IPVS mode on the User Mode Linux kernel (root)
	$(GO) run ./test/kernel/runner -strict=false -v -timeout 6h -run '$(or $(RUN),^TestCrash$$)' ./cmd/slipstream -- -crash-all $(if $(FROM),-crash-from $(FROM)) $(if $(TO),-crash-to $(TO))

soak: deps ## Record a history of changes, kills and damage and judge it, HOURS=8: a quarter for each case; API=1 with a real API server, RUN=TestHistory/nftables (root)
	$(if $(API),cd test/cluster/oracle && $(GO) run ./build tools)
	$(GO) run ./test/kernel/runner $(if $(API),-kernel host) -strict=false -v -timeout 96h -run '$(or $(RUN),^TestHistory$$)' ./cmd/slipstream -- -history $$(( $(or $(HOURS),8) * 15 ))m $(if $(API),-history-tools $$(dirname $$(ls -t $${XDG_CACHE_HOME:-$$HOME/.cache}/slipstream/oracle/*/etcd | head -n 1))) $(if $(SEED),-history-seed $(SEED))

sim: ## Simulate failures of the kernel and the API server, FOR=1m RUNS=100000; or one run, SEED=17
	$(GO) test ./test/sim -count 1 -v -timeout 24h -run '^TestSimulation$$' -args -sim-parts $(shell nproc) $(if $(SEED),-sim-seed $(SEED) -sim-runs $(or $(RUNS),1),-sim-runs $(or $(RUNS),1000000000)) -sim-for $(or $(FOR),1m)

mutation: ## Run a package's tests on mutants of it, OF=internal/desired MUTANTS=50 SEED=17 TESTS=regexp (root for dataplanes)
	$(GO) test ./test/mutation -tags mutation -count 1 -v -timeout 24h -args -of $(or $(OF),internal/desired) -mutants $(or $(MUTANTS),50) $(if $(SEED),-mutation-seed $(SEED)) $(if $(TESTS),-tests '$(TESTS)')

test-cluster-ipvs: deps build ## Replace kube-proxy's IPVS mode and go back, on the User Mode Linux kernel (root)
	cd test/cluster/oracle && $(GO) run ./build tools
	cd test/cluster && $(GO) test -c -o ../../bin/cluster.test .
	$(UML) sh -c 'cd test/cluster && exec ../../bin/cluster.test -test.v -test.timeout 1h -slipstream ../../bin/slipstream -patience 10m -connect-timeout 30s -test.run "$(or $(RUN),TestSwap/ipvs)"'

e2e: build ## Run upstream's e2e specs on a cluster with kubelets; PROXY=slipstream,kube-proxy MODE=nftables,iptables FOCUS=regexp RUN=TestChart PROCS=4 LOGS=dir, SAVE=1 for docs/support.md (root)
	test/deps.sh e2e
	cd test/cluster/oracle && nice -n 10 $(GO) run ./build tools nodes coredns
	cd tools/release && $(GO) build -o ../../bin/ helm.sh/helm/v3/cmd/helm
	cd test/cluster && $(GO) test ./kubelets -count 1 -v -timeout 12h -args -slipstream $(CURDIR)/bin/slipstream -proxy $(or $(PROXY),slipstream) -mode $(or $(MODE),nftables) $(if $(RUN),-test.run $(RUN)) $(if $(FOCUS),-focus '$(FOCUS)') $(if $(PROCS),-procs $(PROCS)) $(if $(LOGS),-logs $(abspath $(LOGS))) $(if $(SAVE),-save)

test-ebpf: deps ## Test eBPF and sockets on Debian's kernels 6.12 and 6.1 in QEMU, 20 minutes each, KERNEL=6.1, RUN=regexp (root)
	for p in fastpath/ebpf socket fastpath; do $(GO) test -c -o bin/$$(basename $$p).test ./internal/$$p || exit 1; done
	for kernel in $(or $(KERNEL),6.12 6.1); do for p in fastpath/ebpf socket fastpath; do \
		[ $$p = fastpath ] && run='EBPF|LateProgram' || run=.; \
		(cd internal/$$p && $(CURDIR)/test/kernel/qemu.sh -kernel $$kernel -cpus 1 -timeout 2h $(CURDIR)/bin/$$(basename $$p).test -test.v \
			-test.run "$(or $(RUN),$$run)" -test.timeout 2h) || exit 1; \
	done; done

# Under qemu-user, the kernel is this machine's, but for netfilter's sockets, which are refused. Tests that need root skip
# themselves for another user; with this capability it may read what root has built. Left out: what starts itself or
# another program, or needs a netlink socket; and manifests, as programs of s390x see the times of files in whole seconds.
EMULATE = $(if $(filter 0,$(shell id -u)),setpriv --reuid=nobody --regid=nogroup --clear-groups --inh-caps=-all$(comma)+dac_override --ambient-caps=-all$(comma)+dac_override)

test-arch: ## Run the tests that need no root on another processor, emulated, ARCH=s390x (Debian package qemu-user-static)
	for arch in $(or $(ARCH),arm64 s390x); do GOARCH=$$arch $(GO) test -timeout 30m -exec "$(EMULATE) qemu-$$(echo $$arch | sed s/arm64/aarch64/)-static" \
		-skip '^(TestUnsupported|TestWorkGrowsWithSize|TestWriteConfig|TestIPv6Disabled|TestFormerFiles)$$' \
		$$($(GO) list ./internal/... ./cmd/... | grep -v internal/source/manifest) ./examples ./test/model ./test/scenario || exit 1; done

# Debian's 6.1 of s390x has no BTF, which the programs of the fast path need.
test-arch-kernel: ## Run eBPF, sockets and stories on Debian's kernel of another processor in QEMU, ARCH=arm64 (or s390x), KERNEL=6.1, RUN=regexp for the stories (root)
	for p in $(if $(filter s390x,$(ARCH)),,internal/fastpath) internal/socket test/scenario; do \
		case $$p in internal/fastpath) run='EBPF|LateProgram' ;; test/scenario) run='$(or $(RUN),^TestNFTables$$)' ;; *) run=. ;; esac; \
		GOARCH=$(or $(ARCH),arm64) $(GO) test -c -o bin/$$(basename $$p).arch ./$$p && test/kernel/qemu-arch.sh -arch $(or $(ARCH),arm64) $(if $(KERNEL),-kernel $(KERNEL)) -timeout 2h \
			bin/$$(basename $$p).arch $$p -test.v -test.timeout 2h -test.parallel 2 -test.run "$$run" || exit 1; \
	done

# Those of scale need an API server, which is slow on the User Mode Linux kernels.
test-bench: deps ## Test the benchmarks (root)
	$(GO) run ./test/kernel/runner -dir bench -timeout 40m ./balance ./bench ./cluster ./figure ./forward ./observe ./programming ./report
	cd test/cluster/oracle && $(GO) run ./build tools
	$(HOST) -dir bench -timeout 30m . ./scale

test-deploy: deps build ## Render deploy/, give it to a kube-apiserver, run it (root)
	cd test/cluster/oracle && $(GO) run ./build tools
	$(HOST) -dir test/cluster/deploy -timeout 20m ./...
	BINARY=$(CURDIR)/bin/slipstream $(GO) run ./test/kernel/runner -kernel 6.12 -dir test/cluster/deploy -run '^TestPodIPVS$$' -timeout 10m .

# Modules that the proxy asks for are loaded before, as that is slow in QEMU.
test-apparmor: build ## Run the chart's pod with sockets under AppArmor's default profile for containers, on Debian's kernel in QEMU (root)
	command -v apparmor_parser >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends apparmor
	cd test/cluster/deploy && $(GO) test -c -o ../../../bin/deploy.test . && BINARY=$(CURDIR)/bin/slipstream $(CURDIR)/test/kernel/qemu.sh -cpus 1 sh -c ' \
		mountpoint -q /sys/kernel/security || mount -t securityfs securityfs /sys/kernel/security; mount -t bpf bpf /sys/fs/bpf; grep Y /sys/module/apparmor/parameters/enabled || exit 1; \
		modprobe -a nft_chain_nat nft_masq nft_redir nft_fib_inet nft_reject_inet nft_limit nft_numgen nft_hash nft_flow_offload nf_conntrack_netlink; \
		exec ../../../bin/deploy.test -test.v -test.timeout 20m -test.run "^TestSocketsOff$$"'

test-browser: deps build ## Test the web page in Chromium; SCREENSHOTS=docs/images for new ones (root)
	$(HOST) -dir test/cluster/browser -timeout 15m . -- $(if $(SCREENSHOTS),-screenshots $(abspath $(SCREENSHOTS)))

image: ## Build the container image with $(ENGINE)
	GO=$(GO) VERSION=$(VERSION) deploy/rootfs.sh bin/image
	$(ENGINE) build -f deploy/Dockerfile -t $(IMAGE) bin/image

release: ## Build a release in DIR, dist by default (docs/release.md); signed if COSIGN_PRIVATE_KEY is set
	GO="$(GO)" deploy/release/release.sh $(or $(DIR),dist)

verify-release: ## Check the release in DIR, with the public key in the file COSIGN_PUBLIC_KEY or the workflow's identity
	GO="$(GO)" deploy/release/verify.sh $(or $(DIR),dist)

test-release: ## Build a release twice, compare, and verify it with and without damage (root; Debian packages)
	GO="$(GO)" deploy/release/test.sh

deps: ## Install what the tests need (root; Debian packages)
	test/deps.sh

lint: bin/staticcheck ## Check formatting, go vet and staticcheck
	@unformatted=$$(gofmt -l $$(git -c safe.directory='*' ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt'ed: $$unformatted"; exit 1; }
	$(GO) vet ./...
	bin/staticcheck ./...
	for module in bench test/cluster/oracle test/cluster/deploy test/cluster test/cluster/browser; do (cd $$module && $(GO) vet ./... && $(CURDIR)/bin/staticcheck ./...) || exit 1; done

bin/staticcheck: tools/go.mod
	cd tools && $(GO) build -o ../bin/staticcheck honnef.co/go/tools/cmd/staticcheck

vulnerabilities: ## Look for known vulnerabilities in what the product calls (asks vuln.go.dev)
	cd tools/release && $(GO) build -o ../../bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	bin/govulncheck ./...

fmt: ## Format the code
	gofmt -w $$(git -c safe.directory='*' ls-files '*.go')

demo: ## Show Services at work in a lab of network namespaces (root)
	@echo 'The demo builds Slipstream, runs it on two nodes, which are network namespaces of this machine, and then'
	@echo 'shows what clients see of Services while endpoints come and go and Slipstream is killed and restarted.'
	@$(MAKE) --no-print-directory build
	$(GO) test -c -o bin/demo ./test/scenario
	cd test/scenario && ../../bin/demo -test.run '^TestDemo$$' -slipstream ../../bin/slipstream

bench: build-bench ## Measure programming 10,000 Services of 10 endpoints (root)
	bin/bench sync --services 10000 --endpoints 10

bench-fastpath: deps build-bench ## Measure what the fast path gains and costs (root)
	GO="$(GO)" bench/fastpath.sh

bench-compare: deps build-bench ## Compare the engines of the fast path with the slow path and with no Service, ROUNDS=6, STREAMS=12, SAVE=file.json, KERNEL=debian (root)
	$(if $(KERNEL),test/kernel/qemu.sh -kernel $(KERNEL:debian=6.12) -timeout 2h) bin/bench forward $(if $(ROUNDS),--rounds $(ROUNDS)) --streams $(or $(STREAMS),12) $(if $(SAVE),--save $(abspath $(SAVE)))

bench-scale: deps build-bench ## Measure beside upstream kube-proxy on a real API server, SERVICES=10000, RUNS=1, SAVE=file.json (root)
	bin/bench scale $(if $(SERVICES),--services $(SERVICES)) $(if $(RUNS),--runs $(RUNS)) $(if $(SAVE),--save $(abspath $(SAVE)))

bench-rules: deps build-bench ## Count the rules that a new connection meets, ours and kube-proxy's in iptables mode, SERVICES=10,100,1000,10000, SAVE=file.json (root)
	bin/bench rules $(if $(SERVICES),--services $(SERVICES)) $(if $(SAVE),--save $(abspath $(SAVE)))

bench-ipvs: deps build-bench ## Measure IPVS mode beside kube-proxy's on the User Mode Linux kernel, SERVICES=10000, RUNS=1 (root)
	cd test/cluster/oracle && $(GO) run ./build tools
	$(UML) bin/bench sync --mode ipvs --services $(or $(SERVICES),10000) --endpoints 10 --runs $(or $(RUNS),1)
	$(UML) bin/bench scale --subjects slipstream-ipvs,kube-proxy-ipvs --services $(or $(SERVICES),10000) --runs $(or $(RUNS),1) --calm 1m

bench-balance: build-bench ## Measure schedulers on three nodes with a slow or failing endpoint, on the User Mode Linux kernel, ROUNDS=5, SAVE=file.json (root)
	$(UML) bin/bench balance $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SAVE),--save $(abspath $(SAVE)))

bench-observe: build-bench ## Measure what the page and scraped metrics cost the proxy, ROUNDS=3, SAVE=file.json (root)
	bin/bench observe $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SAVE),--save $(abspath $(SAVE)))

report: deps build-bench ## Measure everything beside kube-proxy and write report/index.html; FAST=1, PART=scale,rules to repeat parts (root)
	cd test/cluster/oracle && $(GO) run ./build tools
	$(GO) build -o bin/kernel-run ./test/kernel/run
	bench/deps.sh
	bin/bench report --version $(VERSION) $(if $(FAST),--fast) $(if $(PART),--part $(PART))

FUZZTIME ?= 1m
fuzz: ## Fuzz all parsers of what others write, and the desired state, a minute each (FUZZTIME)
	@for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' $$file); do \
			$(GO) test ./$$(dirname $$file) -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x || exit 1; \
		done; \
	done

clean: ## Delete what was built
	rm -rf bin dist
