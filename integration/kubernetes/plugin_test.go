package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// strategy is how a device plugin tells the runtime what was allocated: values of
// NVIDIA's DEVICE_LIST_STRATEGY, two of PASS_DEVICE_SPECS, and HAMi's. CDI is for NVIDIA's own
// plugin to show.
type strategy struct {
	list    string
	devices bool // with the kubelet's device specifications
}

func (s strategy) String() string {
	if s.devices {
		return s.list + " with device specifications"
	}
	return s.list
}

// The lists of NVIDIA's plugin.
const (
	envvar       = "envvar"
	volumeMounts = "volume-mounts"
	// hami is the form of HAMi 2.10 and Volcano's vGPU plugin: the ids are those of parts of GPUs, and
	// the answer is another GPU than the id's if their scheduler chose it, here always the next.
	hami = "HAMi"
	// silent sets nothing: the shim then sees only what the image asks for.
	silent = "nothing"
)

// cdiDir is where NVIDIA's plugin writes CDI specifications.
const cdiDir = "/run/cdi"

// plugin is a device plugin: a gRPC server that registers its socket with the kubelet.
type plugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	driver   *sim.Driver
	resource string
	socket   string
	server   *grpc.Server

	mu       sync.Mutex
	strategy strategy
	ids      []string
	changed  chan struct{} // closed when ids are replaced
}

func newPlugin(driver *sim.Driver, resource string, ids []string) *plugin {
	name := strings.NewReplacer("/", "-", ".", "-").Replace(resource) + ".sock"
	return &plugin{
		driver: driver, resource: resource, ids: ids, changed: make(chan struct{}),
		socket: filepath.Join(deviceplugin.DevicePluginPath, name), strategy: strategy{list: envvar},
	}
}

// stop ends the plugin. The kubelet notices it later: see cluster.stopPlugin.
func (p *plugin) stop() error {
	p.server.Stop()
	return os.Remove(p.socket)
}

// serve serves the API and registers with the kubelet.
func (p *plugin) serve() error {
	p.server = grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(p.server, p)
	// The kubelet clears its directory when it starts. The server listens elsewhere, and register
	// makes a link.
	l, err := net.Listen("unix", p.hidden())
	if err != nil {
		return err
	}
	server := p.server
	go func() { _ = server.Serve(l) }()
	return p.register()
}

func (p *plugin) hidden() string {
	return filepath.Join(filepath.Dir(filepath.Dir(p.socket)), filepath.Base(p.socket))
}

// register makes the plugin known to a kubelet that does not know it. It must not do so twice: a
// kubelet up to 1.36 reads both connections at once, so that an old list of devices can replace the
// new one, and closes the new connection when the old one ends.
func (p *plugin) register() error {
	conn, err := grpc.NewClient("unix://"+deviceplugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	var last error
	testenv.Until(func() bool {
		// The kubelet removes what it finds in its directory before it listens.
		listening, err := net.Dial("unix", deviceplugin.KubeletSocket)
		if last = err; err != nil {
			return false
		}
		listening.Close()
		if last = os.Link(p.hidden(), p.socket); last != nil && !os.IsExist(last) {
			return true
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, last = deviceplugin.NewRegistrationClient(conn).Register(ctx, &deviceplugin.RegisterRequest{
			Version: deviceplugin.Version, Endpoint: filepath.Base(p.socket), ResourceName: p.resource,
		})
		return last == nil
	})
	if last != nil {
		return fmt.Errorf("register %s: %w", p.resource, last)
	}
	return nil
}

// use sets the strategy for later allocations.
func (p *plugin) use(s strategy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strategy = s
}

// offer replaces the devices.
func (p *plugin) offer(ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = ids
	close(p.changed)
	p.changed = make(chan struct{})
}

// offered returns the devices, and a channel that is closed when they are replaced.
func (p *plugin) offered() ([]string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids, p.changed
}

func (p *plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	for {
		ids, changed := p.offered()
		response := &deviceplugin.ListAndWatchResponse{}
		for _, id := range ids {
			response.Devices = append(response.Devices, &deviceplugin.Device{ID: id, Health: deviceplugin.Healthy})
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := &deviceplugin.AllocateResponse{}
	for _, container := range r.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, p.respond(container.DevicesIds))
	}
	return answer, nil
}

// respond does what NVIDIA's plugin does (internal/plugin/server.go, v0.19.3).
func (p *plugin) respond(ids []string) *deviceplugin.ContainerAllocateResponse {
	var gpus []string // without the numbers of replicas, each once
	for _, id := range ids {
		id, _, _ = strings.Cut(id, "::")
		if !slices.Contains(gpus, id) {
			gpus = append(gpus, id)
		}
	}
	slices.Sort(gpus)
	r := &deviceplugin.ContainerAllocateResponse{}
	switch p.strategy.list {
	case hami:
		i := slices.IndexFunc(p.driver.GPUs, func(g sim.GPU) bool { return strings.HasPrefix(ids[0], g.UUID+"-") })
		r.Envs = map[string]string{
			"NVIDIA_VISIBLE_DEVICES":     p.driver.GPUs[(i+1)%len(p.driver.GPUs)].UUID,
			"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_SM_LIMIT": "30",
			"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/x.cache",
		}
		r.Mounts = []*deviceplugin.Mount{{ContainerPath: "/tmp/vgpulock", HostPath: filepath.Dir(p.hidden())}}
	case envvar:
		r.Envs = map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(gpus, ",")}
	case volumeMounts:
		const dir = "/var/run/nvidia-container-devices"
		r.Envs = map[string]string{"NVIDIA_VISIBLE_DEVICES": dir}
		for _, id := range gpus {
			r.Mounts = append(r.Mounts, &deviceplugin.Mount{HostPath: "/dev/null", ContainerPath: filepath.Join(dir, id)})
		}
	}
	if p.strategy.devices {
		nodes := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
		for _, gpu := range p.driver.GPUs {
			if slices.Contains(gpus, gpu.UUID) {
				nodes = append(nodes, fmt.Sprintf("nvidia%d", gpu.Minor))
			}
		}
		for _, m := range p.driver.MIG {
			if slices.Contains(gpus, m.UUID) {
				nodes = append(nodes, fmt.Sprintf("nvidia%d", p.driver.GPUs[m.GPU].Minor),
					fmt.Sprintf("nvidia-caps/nvidia-cap%d", m.GIMinor), fmt.Sprintf("nvidia-caps/nvidia-cap%d", m.CIMinor))
			}
		}
		for _, name := range nodes {
			r.Devices = append(r.Devices, &deviceplugin.DeviceSpec{
				ContainerPath: "/dev/" + name, HostPath: filepath.Join(p.driver.DevRoot, "dev", name), Permissions: "rw",
			})
		}
	}
	return r
}
