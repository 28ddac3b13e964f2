package nerdctl

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv/api"
)

func TestMain(m *testing.M) { simhost.Main(m) }

// host has a CDI file and a program in the place of nerdctl's hook.
type host struct {
	*simhost.Host
	client *api.Client
	// specs is where nerdctl looks for CDI specifications.
	specs string
	// hook writes what nerdctl's hook is called with to ran.
	hook, ran string
}

func newHost(t *testing.T, o simhost.Options) *host {
	h := &host{Host: simhost.New(t, o)}
	h.client = api.Connect(t, h.Env)
	h.specs, h.ran = filepath.Join(h.Dir, "cdi"), filepath.Join(h.Dir, "ran")
	h.hook = simhost.Script(t, filepath.Join(h.Dir, "nerdctl"), "echo \"$@\" >>"+h.ran+"\n")
	if err := os.Mkdir(h.specs, 0o755); err != nil {
		t.Fatal(err)
	}
	h.Ctl(t, "cdi", "--output", filepath.Join(h.specs, "nvidia.yaml"))
	return h
}

// flags are those of `nerdctl create` that matter here.
type flags struct {
	runtime string
	// cdi are the devices that nerdctl makes of --gpus and --device; nodes are GPUs whose node
	// --device names.
	cdi   []string
	nodes []int
	env   []string
	// image are variables of the image.
	image  []string
	mounts []specs.Mount
	labels map[string]string
	args   []string
}

// create is `nerdctl create --net none`. The container is removed with the test.
func (h *host) create(t *testing.T, f flags) string {
	t.Helper()
	id := h.Create(t, testenv.RunOptions{Runtime: f.runtime, Args: f.args, Extra: []string{"--seccomp", "--allow-new-privs"}})
	t.Cleanup(func() { h.Gone(t, id) })
	store, ctx := containers.NewContainersClient(h.client.Conn), h.client.Context(t.Context())
	got, err := store.Get(ctx, &containers.GetContainerRequest{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	c := got.Container
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec.Value, &spec); err != nil {
		t.Fatal(err)
	}
	labels := h.labels(id)
	for key, value := range labels {
		c.Labels[key] = value
	}
	for key, value := range f.labels {
		c.Labels[key] = value
	}
	spec.Annotations = labels
	h.edit(t, &spec, id, f)
	if c.Spec.Value, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Update(ctx, &containers.UpdateContainerRequest{Container: c, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels", "spec"}}}); err != nil {
		t.Fatal(err)
	}
	return id
}

// labels are those of nerdctl's own, which it repeats as annotations.
func (h *host) labels(id string) map[string]string {
	return map[string]string{
		"nerdctl/namespace": h.ID, "nerdctl/name": "demo-" + id, "nerdctl/hostname": id, "nerdctl/domainname": "",
		"nerdctl/extraHosts": "null", "nerdctl/state-dir": h.Dir, "nerdctl/networks": `["none"]`, "nerdctl/platform": "linux/amd64",
		"nerdctl/ipc": `{"mode":"private"}`, "nerdctl/auto-remove": "false", "nerdctl/host-config": `{"BlkioWeight":0,"CidFile":"","Devices":null}`,
		"nerdctl/dns":        `{"DNSServers":null,"DNSResolvConfOptions":null,"DNSSearchDomains":null}`,
		"nerdctl/log-config": `{"driver":"json-file","address":"` + h.Address + `"}`,
	}
}

// edit turns ctr's specification of a container into nerdctl's. CDI comes before the variables of
// the image, and those of --env come last.
func (h *host) edit(t *testing.T, spec *specs.Spec, id string, f flags) {
	t.Helper()
	spec.Process.Rlimits = nil
	spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	if h.Options.Cgroup == 2 {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	spec.Mounts = slices.DeleteFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/run" })
	spec.Mounts = append(spec.Mounts, specs.Mount{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}})
	for _, gpu := range f.nodes {
		major, minor := int64(h.Driver.Majors.GPU), int64(h.Minors[gpu])
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: fmt.Sprintf("/dev/nvidia%d", minor), Type: "c", Major: major, Minor: minor})
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
	}
	image := slices.Concat(spec.Process.Env, f.image)
	spec.Process.Env = nil
	if len(f.cdi) > 0 {
		cache, err := cdi.NewCache(cdi.WithSpecDirs(h.specs), cdi.WithAutoRefresh(false))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cache.InjectDevices(spec, f.cdi...); err != nil {
			t.Fatal(err)
		}
	}
	spec.Process.Env = setEnv(setEnv(image, spec.Process.Env), append(f.env, "HOSTNAME="+id))
	for _, name := range []string{"resolv.conf", "hosts", "hostname"} {
		file := simhost.WriteFile(t, filepath.Join(h.Dir, id+"-"+name), "")
		spec.Mounts = append(spec.Mounts, specs.Mount{Type: "bind", Source: file, Destination: "/etc/" + name, Options: []string{"bind", "rprivate"}})
	}
	spec.Mounts = append(spec.Mounts, f.mounts...)
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	hook := func(stage string) specs.Hook {
		return specs.Hook{Path: h.hook, Args: []string{"nerdctl", "--namespace=" + h.ID, "internal", "oci-hook", stage}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
	}
	spec.Hooks.CreateRuntime = append(spec.Hooks.CreateRuntime, hook("createRuntime"))
	spec.Hooks.Poststop = append(spec.Hooks.Poststop, hook("postStop"))
}

// setEnv replaces variables where they are, and adds the others.
func setEnv(env, more []string) []string {
	for _, v := range more {
		name, _, _ := strings.Cut(v, "=")
		at := slices.IndexFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		if at < 0 {
			env = append(env, v)
		} else {
			env[at] = v
		}
	}
	return env
}
