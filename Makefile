# containerd-shim-nvidia. `make` alone prints the targets.

GO       ?= go
BIN      := $(CURDIR)/bin
TOOLS    := $(BIN)/tools
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unreleased)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
MODULE   := github.com/containerd-shim-nvidia/containerd-shim-nvidia
CTRD     := github.com/containerd/containerd/v2/version
LDFLAGS  := -s -w -X $(MODULE)/internal/version.Version=$(VERSION) -X $(MODULE)/internal/version.Revision=$(REVISION) \
            -X $(CTRD).Version=$(VERSION) -X $(CTRD).Revision=$(REVISION)
# Without gRPC: containerd's own Makefile builds its shim with this tag.
SHIM_TAGS := no_grpc
MAX_SHIM_BYTES := 10500000

.DEFAULT_GOAL := help
.PHONY: help build packages man tools daemons kubernetes docker kind demo test test-long test-kind test-vm test-unit guards test-gpu attacks soak bench bench-real lint fuzz clean deps

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install the Debian packages that tools and tests need (as root)
	integration/tools/apt.sh

# nvidia-shim-nvml loads libnvidia-ml and so needs cgo and the C library of the host that
# builds it, or a newer one; user names and host names are looked up without it.
NVML_TAGS := netgo,osusergo
# go-nvml wraps what newer drivers call deprecated, and gcc would say so for each.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

build: ## build the shim and nvidia-shimctl (static, no cgo), and nvidia-shim-nvml (cgo) into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -tags "$(SHIM_TAGS)" -ldflags "$(LDFLAGS)" -o $(BIN)/containerd-shim-nvidia-v2 ./cmd/containerd-shim-nvidia-v2
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o $(BIN)/nvidia-shimctl ./cmd/nvidia-shimctl
	CGO_ENABLED=1 $(GO) build -trimpath -tags "$(NVML_TAGS)" -ldflags "$(LDFLAGS)" -o $(BIN)/nvidia-shim-nvml ./cmd/nvidia-shim-nvml
	@size=$$(stat -c %s $(BIN)/containerd-shim-nvidia-v2); \
	if [ $$size -gt $(MAX_SHIM_BYTES) ]; then echo "the shim has $$size bytes, more than $(MAX_SHIM_BYTES)"; exit 1; fi

packages: ## build tar.gz, deb, rpm, node image and chart for amd64 and arm64 into dist/
	packaging/build.sh $(CURDIR)/dist

SHARE := $(BIN)/share

man: build ## write the manual page and completion scripts into bin/share/, as they go into /usr/local/share/
	@mkdir -p $(SHARE)/man/man8 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(BIN)/nvidia-shimctl man > $(SHARE)/man/man8/nvidia-shimctl.8
	$(BIN)/nvidia-shimctl completion bash > $(SHARE)/bash-completion/completions/nvidia-shimctl
	$(BIN)/nvidia-shimctl completion zsh > $(SHARE)/zsh/site-functions/_nvidia-shimctl
	$(BIN)/nvidia-shimctl completion fish > $(SHARE)/fish/vendor_completions.d/nvidia-shimctl.fish

daemons: ## build older containerds, which the shim must serve too, into bin/daemons/
	integration/daemons/build.sh $(BIN)/daemons

kubernetes: ## build etcd, Kubernetes' commands, CNI, NVIDIA's device plugin and Helm into bin/kubernetes/
	integration/kubernetes/build.sh $(BIN)/kubernetes
	cd integration/tools/helm && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/kubernetes/ helm.sh/helm/v4/cmd/helm sigs.k8s.io/kustomize/kustomize/v5

docker: ## build dockerd, the docker command, buildx and compose into bin/docker/
	integration/docker/build.sh $(BIN)/docker

# NODE is a published image of a node, such as kindest/node:v1.37.0, in place of one made here.
kind: tools kubernetes ## build kind and a node image from Debian's packages into bin/kind/
	@mkdir -p $(BIN)/kind
	cd integration/tools/kind && CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/kind/kind sigs.k8s.io/kind
ifdef NODE
	docker pull $(NODE)
	docker tag $(NODE) kindest/node:test
	docker save --output $(BIN)/kind/node.tar kindest/node:test
else
	$(GO) run ./integration/docker/kindnode "$$(cd integration/tools/kind && $(GO) list -m -f '{{.Dir}}' sigs.k8s.io/kind)" $(BIN)/kind/node.tar
endif

tools: ## build containerd, ctr, the stock shim and runc into bin/tools/ from Go modules
	integration/tools/build.sh $(TOOLS)

demo: deps build tools ## show a GPU inside a container: the real driver where there is one, else a simulated one
	$(GO) run ./integration/demo -bin $(BIN)

# One package at a time: tests measure memory and processor time of what they start.
TEST_FLAGS ?= -count=1 -p 1 -timeout 40m

test: deps build packages tools daemons kubernetes docker ## run all tests that need no GPU (as root)
	cd integration/conformance && $(GO) test $(TEST_FLAGS) ./...
	cd integration/daemons && $(GO) test $(TEST_FLAGS) ./...
	cd integration/kubernetes && $(GO) test $(TEST_FLAGS) .
	$(GO) test -count=1 $(UNIT)
	$(GO) test $(TEST_FLAGS) ./integration/...

test-long: build tools ## run the long forms of the tests of races and load (as root, an hour)
	$(GO) test $(TEST_FLAGS) ./integration/attacks -run 'AreExchanged|T17|T18' -args -creates=500
	$(GO) test $(TEST_FLAGS) ./integration/robustness -run MakeNothingGrow -args -cycles=2000 -containers=200

UNIT := ./gpuinject/... ./shim/... ./internal/... ./runtimeclass/... ./cmd/... ./integration/docs

test-unit: ## run the tests that need nothing built
	$(GO) test -count=1 $(UNIT)

test-kind: deps build docker kind ## run a cluster of kind under Docker, with simulated GPUs (as root)
	$(GO) test $(TEST_FLAGS) -tags kind -exec 'unshare --mount --net' -run '^TestKind' ./integration/docker

MACHINES ?= debian-12 debian-13 debian-13-arm64

test-vm: deps build packages tools ## install the package on machines of real distributions by qemu, with simulated GPUs, and print what was tried (as root)
	integration/vm/run.sh $(BIN) dist $(BIN)/vm $(MACHINES)

guards: ## remove one guard at a time and see its test fail (as root)
	$(GO) test -count=1 -v -timeout 40m -tags guards ./integration/guards

test-gpu: build packages tools kubernetes docker ## run the acceptance tests on this host's real GPUs (as root)
	$(GO) test -count=1 -v -timeout 20m -tags gpu ./integration/gpu
	$(GO) test -count=1 -v -timeout 20m -tags gpu -run '^TestOnRealGPUs' ./integration/docker
	cd integration/kubernetes && $(GO) test -count=1 -v -timeout 20m -tags gpu -run '^TestOnRealGPUs' .
	$(GO) test -count=1 -v -timeout 20m -tags gpu -run '^TestOnRealGPUs' ./integration/systemd

SOAK ?= $(BIN)/soak.json
SOAK_SERVE ?= 1h

soak: deps build tools kubernetes ## 150 pods that are churned, 1,000 faults around memory limits, an hour of clients against serve, then failing system calls of the shim for 10,000 containers or until stopped; goes on with $SOAK
	cd integration/kubernetes && $(GO) test -count=1 -v -timeout 20m -run NothingOutlivesItsPod . -args -gpu-pods=100 -plain-pods=50 -cut-pods=36
	NVIDIA_SHIM_SOAK_LIMITS=1000 $(GO) test -count=1 -v -timeout 2h -run ManyFaultsLeaveNoLimit ./integration/robustness
	NVIDIA_SHIM_SOAK_SERVE=$(SOAK_SERVE) $(GO) test -count=1 -v -timeout 0 -run UnderManyConnections ./integration/serve
	NVIDIA_SHIM_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -run ASystemCallFails ./integration/attacks

bench: deps build tools kubernetes ## measure against the stock shim and write docs/benchmarks.md
	$(GO) run ./integration/bench -out docs/benchmarks.md
	cd integration/kubernetes && NVIDIA_SHIM_BENCH_PAGE=$(CURDIR)/docs/benchmarks.md $(GO) test -count=1 -timeout 40m -run '^$$' -bench PodContainer -benchtime 150x .

bench-real: build tools ## measure on this GPU host, and write all samples to samples.json
	$(GO) run ./integration/bench -real -out "" -n 100 -json samples.json

lint: ## run golangci-lint with the rules that guard the invariants, actionlint and govulncheck
	@mkdir -p $(TOOLS)
	cd integration/tools/lint && $(GO) build -trimpath -o $(TOOLS)/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint golang.org/x/vuln/cmd/govulncheck
	cd integration/tools/actionlint && $(GO) build -trimpath -o $(TOOLS)/ github.com/rhysd/actionlint/cmd/actionlint
	$(TOOLS)/golangci-lint run ./...
	$(TOOLS)/actionlint
	@out=$$($(TOOLS)/govulncheck ./... 2>&1) && exit; \
	case "$$out" in *"fetching vulnerabilities"*) echo "NOT CHECKED: known vulnerabilities: $$out" ;; *) echo "$$out"; exit 1 ;; esac

.PHONY: attacks
attacks: deps build tools daemons kubernetes ## run the attacks of docs/threat-model.md and print the table of their results (as root)
	{ $(GO) test -json $(TEST_FLAGS) ./gpuinject/... ./shim/... ./internal/... ./integration/...; \
	  for dir in daemons kubernetes; do (cd integration/$$dir && $(GO) test -json $(TEST_FLAGS) -run '^TestT[0-9]' .); done; } | $(GO) run ./integration/attacks/table docs/threat-model.md

FUZZTIME ?= 20s

fuzz: ## run every fuzz target for FUZZTIME
	@set -e; for pkg in $$($(GO) list ./gpuinject/... ./internal/... ./runtimeclass ./shim/...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
	  done; done

clean: ## remove what was built
	rm -rf $(BIN) dist
