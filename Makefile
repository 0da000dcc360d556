# SPDX-License-Identifier: Apache-2.0
#
# 'make' lists the targets. Those that need root say so.

# sudo's PATH often lacks the place where Go is installed by default; su's lacks root's commands.
GO ?= $(firstword $(shell command -v go 2>/dev/null) $(wildcard /usr/local/go/bin/go) go)
export PATH := $(PATH):$(patsubst %/,%,$(dir $(GO))):/usr/local/sbin:/usr/sbin:/sbin
export CGO_ENABLED = 0

VERSION := $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo devel)
# Version control is asked above; Go would refuse to in a checkout of another user's.
BUILD := $(GO) build -buildvcs=false -trimpath
export GOFLAGS := $(GOFLAGS) -buildvcs=false

ENGINE ?= docker
IMAGE ?= slipstream:$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help build test race oracle oracle-ipvs test-browser test-cluster test-cluster-ipvs test-deploy image deps lint fmt demo bench bench-fastpath bench-compare bench-scale bench-rules bench-ipvs bench-balance bench-observe report fuzz clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/slipstream and bin/slipstream-bench, static binaries
	$(BUILD) -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/slipstream ./cmd/slipstream-bench

test: deps build ## Install what the tests need and run them all, here and on the User Mode Linux kernels (root)
	$(GO) run ./test/runner -timeout 40m ./...
	@$(MAKE) --no-print-directory test-browser oracle test-deploy test-cluster

race: deps ## Run the packages that start goroutines under the race detector (root)
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 20m ./internal/proxy/... ./internal/source/... ./internal/fastpath/... ./internal/node/... ./internal/observe/...

oracle: deps ## Compare with upstream kube-proxy on random clusters; SEED=1000 CLUSTERS=50 for others and more, MODE=nftables, iptables-legacy or iptables-nft (root)
	cd test/oracle && $(GO) run ./build tools previous && $(GO) test ./cluster ./observe ./stage ./upstream
	cd test/oracle && $(GO) test -count=1 -v -timeout 1h . $(if $(SEED),-seed $(SEED)) $(if $(CLUSTERS),-clusters $(CLUSTERS)) $(if $(MODE),-mode $(MODE))

# Only the test kernel has IPVS. Everything is built here: compiling there is slow.
# With 5,000 Services and more, kube-apiserver needs more memory mappings on the host than it gives
# a process there by default: sysctl vm.max_map_count=1000000.
UML = $(GO) run ./test/kernel/run -memory 8G -timeout 2h

oracle-ipvs: deps ## The same in IPVS mode, on the User Mode Linux kernel; SEED=1000 CLUSTERS=10, RUN=Releases (root)
	cd test/oracle && $(GO) run ./build tools previous && $(GO) test -c -o ../../bin/oracle.test .
	$(UML) sh -c 'cd test/oracle && exec ../../bin/oracle.test -test.v -test.timeout 2h -mode ipvs -test.run "$(or $(RUN),Oracle)" -clusters $(or $(CLUSTERS),4) $(if $(SEED),-seed $(SEED))'

test-cluster: deps build ## Test the proxy end to end on a real kube-apiserver, with several nodes, beside kube-proxy (root)
	cd test/oracle && $(GO) run ./build tools oldest
	cd test/cluster && $(GO) test -count=1 -parallel 3 -timeout 30m ./...

test-cluster-ipvs: deps build ## Replace kube-proxy's IPVS mode and go back, on the User Mode Linux kernel (root)
	cd test/oracle && $(GO) run ./build tools
	cd test/cluster && $(GO) test -c -o ../../bin/cluster.test .
	$(UML) sh -c 'cd test/cluster && exec ../../bin/cluster.test -test.v -test.timeout 1h -slipstream ../../bin/slipstream -patience 10m -connect-timeout 30s -test.run "$(or $(RUN),TestSwap/ipvs)"'

test-deploy: deps ## Render deploy/, give it to a kube-apiserver, run it (root)
	cd test/oracle && $(GO) run ./build tools
	cd test/deploy && $(GO) test -count=1 -timeout 20m ./...

test-browser: deps build ## Test the web page in Chromium; SCREENSHOTS=docs/images for new ones (root)
	cd test/browser && $(GO) test -count=1 -timeout 15m . $(if $(SCREENSHOTS),-screenshots $(abspath $(SCREENSHOTS)))

image: ## Build the container image with $(ENGINE)
	GO=$(GO) VERSION=$(VERSION) deploy/rootfs.sh bin/image
	$(ENGINE) build -f deploy/Dockerfile -t $(IMAGE) bin/image

deps: ## Install what the tests need (root; Debian packages)
	test/deps.sh

lint: bin/staticcheck ## Check formatting, go vet and staticcheck
	@unformatted=$$(gofmt -l $$(git -c safe.directory='*' ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt'ed: $$unformatted"; exit 1; }
	$(GO) vet ./...
	bin/staticcheck ./...
	for module in oracle deploy cluster browser report/load; do (cd test/$$module && $(GO) vet ./... && $(CURDIR)/bin/staticcheck ./...) || exit 1; done

bin/staticcheck: tools/go.mod
	cd tools && $(GO) build -o ../bin/staticcheck honnef.co/go/tools/cmd/staticcheck

fmt: ## Format the code
	gofmt -w $$(git -c safe.directory='*' ls-files '*.go')

demo: build ## Show Services at work in a lab of network namespaces (root)
	$(GO) run ./test/demo -slipstream bin/slipstream

bench: build ## Measure programming 10,000 Services of 10 endpoints (root)
	bin/slipstream-bench sync --services 10000 --endpoints 10

bench-fastpath: deps build ## Measure what the fast path gains and costs (root)
	GO="$(GO)" cmd/slipstream-bench/fastpath.sh

bench-compare: deps build ## Compare the engines of the fast path with the slow path and with no Service, ROUNDS=6, STREAMS=12, SAVE=file.json, KERNEL=debian (root)
	$(if $(KERNEL),test/kernel/qemu.sh -kernel $(KERNEL:debian=6.12) -timeout 2h) bin/slipstream-bench compare $(if $(ROUNDS),--rounds $(ROUNDS)) --streams $(or $(STREAMS),12) $(if $(SAVE),--save $(abspath $(SAVE)))

bench-scale: deps build ## Measure beside upstream kube-proxy on a real API server, SERVICES=10000, RUNS=1, SAVE=file.json (root)
	cd test/cluster && $(GO) run ./scale -slipstream ../../bin/slipstream $(if $(SERVICES),-services $(SERVICES)) $(if $(RUNS),-runs $(RUNS)) $(if $(SAVE),-save $(abspath $(SAVE)))

bench-rules: deps build ## Count the rules that a new connection meets, ours and kube-proxy's in iptables mode, SERVICES=10,100,1000,10000, SAVE=file.json (root)
	cd test/cluster && $(GO) run ./scale rules -slipstream ../../bin/slipstream $(if $(SERVICES),-services $(SERVICES)) $(if $(SAVE),-save $(abspath $(SAVE)))

bench-ipvs: deps build ## Measure IPVS mode beside kube-proxy's on the User Mode Linux kernel, SERVICES=10000, RUNS=1, RULES=10,100 (root)
	cd test/oracle && $(GO) run ./build tools
	cd test/cluster && $(GO) build -o ../../bin/scale ./scale
	$(UML) bin/slipstream-bench sync --mode ipvs --services $(or $(SERVICES),10000) --endpoints 10 --runs $(or $(RUNS),1)
	$(UML) sh -c 'cd test/cluster && exec ../../bin/scale -slipstream ../../bin/slipstream -subjects slipstream-ipvs,kube-proxy-ipvs -services $(or $(SERVICES),10000) -runs $(or $(RUNS),1) -calm 1m'
	$(UML) sh -c 'cd test/cluster && exec ../../bin/scale rules -slipstream ../../bin/slipstream -subjects slipstream-ipvs,kube-proxy-ipvs $(if $(RULES),-services $(RULES)) -calm 1m'

bench-balance: build ## Measure schedulers on three nodes with a slow endpoint, on the User Mode Linux kernel, ROUNDS=5, SAVE=file.json (root)
	$(UML) bin/slipstream-bench balance $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SAVE),--save $(abspath $(SAVE)))

bench-observe: build ## Measure what the page and scraped metrics cost the proxy, ROUNDS=3, SAVE=file.json (root)
	bin/slipstream-bench observe $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SAVE),--save $(abspath $(SAVE)))

report: deps build ## Measure everything beside kube-proxy and write report/index.html; FAST=1, PART=scale,rules to repeat parts (root)
	cd test/oracle && $(GO) run ./build tools
	cd test/cluster && $(GO) build -o ../../bin/ ./scale
	$(GO) build -o bin/kernel-run ./test/kernel/run
	$(GO) build -o bin/report ./test/report
	cd test/report/load && $(GO) build -o ../../../bin/report-load .
	test/report/deps.sh
	bin/report -version $(VERSION) $(if $(FAST),-fast) $(if $(PART),-part $(PART))

fuzz: ## Fuzz the decoders of manifests and configuration, and the desired state, a minute each
	$(GO) test ./internal/source/manifest -run '^$$' -fuzz FuzzDecode -fuzztime 1m
	$(GO) test ./internal/config -run '^$$' -fuzz FuzzDecode -fuzztime 1m -fuzzminimizetime 10x
	$(GO) test ./internal/desired -run '^$$' -fuzz FuzzEvents -fuzztime 1m

clean: ## Delete what was built
	rm -rf bin
