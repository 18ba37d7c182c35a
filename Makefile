# Every target that a person calls has a help line behind "##": `make help`.
SHELL := /bin/bash
GO ?= go
BIN := $(CURDIR)/bin
# The only list of the Debian packages that building, testing and the demo need.
DEBS := clang-19 llvm-19 libbpf-dev linux-libc-dev gcc libc6-dev bpftool iproute2 iputils-ping procps nftables iptables iperf3 tcpdump containernetworking-plugins podman crun busybox-static libxml2-utils curl ca-certificates git

.PHONY: help deps build demo lab test soak bench lint generate
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

deps: ## install every Debian package that is missing, mount bpffs if it is not
	@missing=; for p in $(DEBS); do dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
		if [ $$(id -u) != 0 ]; then echo "missing packages:$$missing; run 'make deps' as root" >&2; exit 1; fi; \
		echo "installing:$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
	@command -v $(GO) >/dev/null || { echo "Go is missing; install the version that go.mod names" >&2; exit 1; }
	@if [ $$(id -u) = 0 ] && [ "$$(stat -f -c %T /sys/fs/bpf 2>/dev/null)" != bpf_fs ]; then mount -t bpf bpf /sys/fs/bpf; fi

build: ## compile the binaries into bin/ and the built-in data plane objects
	@$(GO) run ./pkg/datapath/loader/builtin
	@mkdir -p $(BIN)
	@$(GO) build -o $(BIN)/weir-agent ./daemon
	@CGO_ENABLED=0 $(GO) build -ldflags "-s -w" -o $(BIN)/weir-cni ./plugins/weir-cni
	@$(GO) build -o $(BIN)/weir ./cli

demo: deps build ## bring examples/shop up, print its truth table from real packets, explain two verdicts (root)
	@$(BIN)/weir lab demo examples/shop

lab: build ## bring examples/shop up and leave it running (root); take it down with bin/weir lab down
	@$(BIN)/weir lab up examples/shop

test: deps build ## all tests: unit, kernel and lab (root)
	@$(GO) run ./test/run

soak: deps build ## the long forms of the tests that repeat something: hundreds of restarts, of pods, an upgrade (root)
	@WEIR_SOAK=1 WEIR_KERNEL_TESTS=1 $(GO) test -count=1 -p 1 -timeout 4h ./test/node ./pkg/...

bench: deps build ## measure Weir against the bare redirect in one run (root)
	@$(GO) run ./test/bench

lint: ## gofmt, go vet, architecture
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	@$(GO) vet ./...
	@$(GO) test ./pkg/arch

generate: ## write generated code again
	@$(GO) generate ./...
