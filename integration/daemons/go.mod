module github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/daemons

go 1.26.6

require (
	github.com/containerd-shim-nvidia/containerd-shim-nvidia v0.0.0
	github.com/containerd/containerd/api v1.12.0
	google.golang.org/grpc v1.83.2
	google.golang.org/protobuf v1.36.12
	k8s.io/cri-api v0.36.3
)

require (
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260825221802-da73d73af1c5 // indirect
)

replace github.com/containerd-shim-nvidia/containerd-shim-nvidia => ../..
