package gpuinject

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
)

func TestDecisions(t *testing.T) {
	uuid := func(i int) string { return simulated.GPUs[i].UUID }
	h := newMIGHost(t)
	device := func(ids string) string { return "MIG device " + h.older(ids) }
	for _, tc := range []struct {
		name   string
		host   *testHost // nil means simulatedHost
		env    []string
		spec   func(*specs.Spec)
		config func(*config.Config)
		want   []string // subject, decision and the beginning of the reason
	}{
		{name: "GPUs by name", env: devices("0," + uuid(2)), want: []string{
			`container: asks for the driver: NVIDIA_VISIBLE_DEVICES="0,`,
			"capabilities: compute,utility: NVIDIA_DRIVER_CAPABILITIES is not set",
			"grant: every device of this host: outside Kubernetes the environment grants",
			`GPU 0: given: asked for as "0"`, "GPU 1: not given: not asked for", `GPU 2: given: asked for as "` + uuid(2) + `"`, "GPU 3: not given: not asked for",
			"/proc/driver: masked: ",
		}},
		{name: "one GPU by two names", env: devices("1," + uuid(1)), want: []string{`GPU 1: given: asked for as "1" and "` + uuid(1) + `"`}},
		{name: "the driver alone", env: devices("none"), want: []string{"GPU 0: not given: the driver was asked for without a GPU"}},
		{name: "a pod's own among all", env: devices("all"), spec: inPod(2), want: []string{
			"grant: " + uuid(2) + ": in the container's specification",
			`GPU 0: refused: asked for as "all", and not among the devices that were granted: in the container's specification: ` + uuid(2),
			`GPU 2: given: asked for as "all"`,
		}},
		{name: "a pod that names another's GPU before its own", env: devices("0,2"), spec: inPod(2), want: []string{
			`GPU 0: refused: asked for as "0", and not among the devices that were granted`,
			"GPU 1: not given: not asked for",
			`GPU 2: not given: asked for as "2"; the request was refused`,
		}},
		{name: "a pod that was given nothing", env: devices("all"), spec: inPod(), want: []string{
			"grant: none: no GPU was allocated", "GPU 3: not given: nothing was granted: no GPU was allocated",
		}},
		{name: "a pod that was given nothing and names a GPU", env: devices("3"), spec: inPod(), want: []string{"GPU 3: not given: nothing was granted: no GPU was allocated"}},
		{name: "capabilities that were asked for", env: append(devices("0"), caps("all")...), want: []string{`capabilities: compat32,compute,display,graphics,ngx,utility,video: NVIDIA_DRIVER_CAPABILITIES="all"`}},
		{name: "an image older than CUDA 9", env: []string{"CUDA_VERSION=8.0"}, want: []string{
			"container: asks for the driver: NVIDIA_VISIBLE_DEVICES is not set and CUDA_VERSION is",
			"capabilities: compat32,compute,display,graphics,ngx,utility,video: NVIDIA_DRIVER_CAPABILITIES is not set in an image older than CUDA 9",
			`CUDA_VERSION: satisfied: by ["cuda>=8.0"]`,
		}},
		{name: "requirements switched off", env: append(devices("0"), "NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=1"), want: []string{"requirements: not checked: NVIDIA_DISABLE_REQUIRE is true"}},
		{name: "other devices of a pod", env: append(devices("all"), "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled"), spec: inPod(0),
			config: func(c *config.Config) { c.Policy.AllowFromEnvironment = []string{"gdrcopy"} },
			want:   []string{"gds: ignored: no device of that kind was allocated", "gdrcopy: given: allow-from-environment"}},
		{name: "NVIDIA's hook", env: devices("0"), spec: withHook("/usr/bin/nvidia-container-runtime-hook"), want: []string{`hook "/usr/bin/nvidia-container-runtime-hook": removed: it is NVIDIA's`}},
		{name: "another's hook", env: devices("0"), spec: withHook("/opt/nvidia-ctk-of-mine"), want: []string{`hook "/opt/nvidia-ctk-of-mine": kept: it is not one of NVIDIA's`}},
		{name: "mounts before the environment", env: devices("all"), spec: listing("1"), want: []string{
			`container: asks for the driver: device-list mounts name "1"`, "NVIDIA_VISIBLE_DEVICES: not followed: device-list mounts go before it", `GPU 1: given: asked for as "1"`,
		}},
		{name: "annotations before mounts and the environment", env: devices("all"), spec: all(listing("1"), annotated("cdi.k8s.io/x", "nvidia.com/gpu=2")), want: []string{
			"device-list mounts: not followed: annotations go before it", "NVIDIA_VISIBLE_DEVICES: not followed: annotations go before it", `GPU 2: given: asked for as "2"`,
		}},
		{name: "mounts that are not accepted", env: devices("0"), spec: listing("1"), config: noMounts, want: []string{
			"device-list mounts: not followed: policy.accept-volume-mounts is false", `GPU 0: given: asked for as "0"`,
		}},
		{name: "swarm", env: append(devices("all"), "DOCKER_RESOURCE_GPU=1"), config: func(c *config.Config) { c.Policy.SwarmResources = []string{"DOCKER_RESOURCE_GPU"} }, want: []string{
			"NVIDIA_VISIBLE_DEVICES: not followed: swarm's resources of policy.swarm-resources go before it", `GPU 1: given: asked for as "1"`,
		}},
		{name: "what CDI put into the specification", env: devices("all"), spec: func(s *specs.Spec) { applyCDI(t, s, realCDI(t), "nvidia.com/gpu=1") }, want: []string{
			"container: asks for the driver: CDI put device nodes of the driver", "GPU 1: given: asked for as", "GPU 0: not given: not asked for",
		}},
		{name: "all of a partitioned host", host: h, env: devices("all"), want: []string{
			`GPU 0: given: asked for as "all"`, "GPU 1: not given: partitioned by MIG: its 3 MIG devices", device("5/1") + `: given: asked for as "all"`,
		}},
		{name: "a MIG device", host: h, env: devices(h.older("9/0")), want: []string{
			"GPU 1: not given: partitioned by MIG", device("9/0") + `: given: asked for as "MIG-`, device("5/0") + ": not given: not asked for",
		}},
		{name: "a partitioned GPU", host: h, env: devices("1"), want: []string{"GPU 0: not given: not asked for", "GPU 1: not given: partitioned by MIG"}},
		{name: "the right to configure MIG", host: h, env: append(devices("0,1"), "NVIDIA_MIG_CONFIG_DEVICES=all"), spec: admin, want: []string{
			"MIG right config: given: asked for by NVIDIA_MIG_CONFIG_DEVICES", `GPU 1: given: asked for as "1"`,
			device("5/1") + ": given: it belongs to a GPU whose MIG devices",
		}},
		{name: "a pod with another GPU than the partitioned", host: h, env: devices("all"), spec: inPodOf(h.Driver, 0), want: []string{
			`GPU 0: given: asked for as "all"`, device("5/1") + `: refused: asked for as "all", and not among the devices that were granted`,
		}},
		{name: "a container as a host that has no MIG device", host: newMIGHost(t).nested(t), env: devices("all"), want: []string{
			"GPU 1: not given: partitioned by MIG, and this host, a container itself, was given none of its MIG devices",
		}},
		{name: "a privileged container", env: devices("0"), spec: privileged, want: []string{"/proc/driver: not masked: a privileged container"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := cmp.Or(tc.host, simulatedHost(t))
			if tc.config != nil {
				tc.config(host.cfg)
			}
			spec := newSpec(tc.env...)
			if tc.spec != nil {
				tc.spec(spec)
			}
			plan, err := host.resolve(t, spec)
			if refused := new(verdict.Error); err != nil && (!errors.As(err, &refused) || refused.Kind == verdict.KindInternal) {
				t.Fatal(err)
			}
			var got []string
			gpus := 0
			for _, d := range plan.Decisions {
				got = append(got, d.Subject+": "+d.Decision+": "+d.Reason)
				if strings.HasPrefix(d.Subject, "GPU ") {
					gpus++
				}
				if d.Decision == "" || d.Reason == "" {
					t.Errorf("%+v does not say everything", d)
				}
			}
			if gpus != len(host.GPUs) {
				t.Errorf("%d GPUs are explained, of %d", gpus, len(host.GPUs))
			}
			for _, want := range tc.want {
				if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
					t.Errorf("no decision %q among\n%s", want, strings.Join(got, "\n"))
				}
			}
		})
	}
}
