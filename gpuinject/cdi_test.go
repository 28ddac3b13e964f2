package gpuinject

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/verdict"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
)

// applyCDI edits spec as containerd and Docker do, with the CDI project's own library, including
// rules that allow mknod.
func applyCDI(t testing.TB, spec *specs.Spec, dir string, names ...string) {
	t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err == nil {
		_, err = cache.InjectDevices(spec, names...)
	}
	check(t, err)
}

// editedByCDI makes the first added device a node of a CDI specification that has a hook.
func editedByCDI(node string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Devices[0].Path = node
		s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}}}
	}
}

// nvidiaMount holds the mount options in specifications of nvidia-ctk 1.18 and later.
var nvidiaMount = []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}

func TestCDIEditsAreTakenOver(t *testing.T) {
	for device, gpus := range map[string]string{"2": "GPU 2", "all": "every GPU"} {
		t.Run(device, func(t *testing.T) {
			spec := newSpec("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all")
			before := len(spec.Mounts)
			applyCDI(t, spec, realCDI(t), "nvidia.com/gpu="+device)
			lib := filepath.Dir(spec.Mounts[slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return strings.Contains(m.Destination, "/libcuda.so.") })].Destination)
			spec.Mounts = append(spec.Mounts, // a file of a removed driver, in a stale specification
				specs.Mount{Source: simulated.Root + lib + "/libnvidia-old.so.470.1.2", Destination: lib + "/libnvidia-old.so.470.1.2", Type: "bind", Options: nvidiaMount})
			theirs := slices.Clone(spec.Mounts[before:])
			if len(theirs) < 40 {
				t.Fatalf("%d mounts: that is no specification of NVIDIA's", len(theirs))
			}
			// What a user and other vendors add.
			users := []specs.Mount{
				{Source: simulated.Root + "/usr/bin/nvidia-smi", Destination: "/opt/smi", Type: "bind", Options: nvidiaMount},
				{Source: simulated.Root + "/usr/bin/nvidia-debugdump", Destination: "/opt/dump", Type: "bind", Options: []string{"rbind", "rprivate", "ro"}},
			}
			spec.Mounts = append(spec.Mounts, users...)
			foreign := specs.Hook{Path: "/opt/other/hook", Args: []string{"hook", "nvidia"}}
			spec.Hooks.CreateContainer = slices.Insert(spec.Hooks.CreateContainer, 1, foreign)
			major, minor := int64(240), int64(7)
			rule := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/foreign", Type: "c", Major: major, Minor: minor})
			spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, rule)

			dir := newBundle(t, spec)
			plan := mustInject(t, hostConfig(t), dir)
			got := readSpec(t, dir)
			if showGPUs(plan) != gpus || !strings.Contains(plan.Grant, "taken over from CDI: "+plan.GPUs[0].UUID) || len(plan.Capabilities) != 7 {
				t.Errorf("%s, grant %q, capabilities %q", showGPUs(plan), plan.Grant, plan.Capabilities)
			}
			if hooks := request.Hooks(*got.Hooks); len(hooks) != 1 || !reflect.DeepEqual(hooks[0], foreign) || len(plan.RemovedHooks) < 2 {
				t.Errorf("hooks %+v, removed %q", hooks, plan.RemovedHooks)
			}
			for _, r := range got.Linux.Resources.Devices[1:] {
				if isForeign := *r.Major == 240; isForeign != (r.Access == "rwm") {
					t.Errorf("rule %d:%d allows %s", *r.Major, *r.Minor, r.Access)
				}
			}
			numbers := map[string]int{}
			for _, d := range got.Linux.Devices {
				numbers[fmt.Sprint(d.Major, ":", d.Minor)]++
			}
			for n, count := range numbers {
				if count != 1 {
					t.Errorf("node %s is there %d times", n, count)
				}
			}
			for _, g := range simulated.GPUs {
				if has := numbers[fmt.Sprint(simulated.Majors.GPU, ":", g.Minor)] == 1; has != slices.ContainsFunc(plan.GPUs, func(p PlanGPU) bool { return p.Index == g.Index }) || numbers["240:7"] != 1 {
					t.Errorf("the node of GPU %d: %v in %v", g.Index, has, numbers)
				}
			}
			seen := map[string]bool{}
			for _, m := range got.Mounts {
				if is := func(x specs.Mount) bool { return reflect.DeepEqual(x, m) }; slices.ContainsFunc(theirs, is) || seen[m.Destination] {
					t.Errorf("the mount of %s at %s is still there or there twice", m.Source, m.Destination)
				}
				seen[m.Destination] = true
			}
			if !seen["/opt/smi"] || !seen["/opt/dump"] {
				t.Errorf("a user's mount is gone: %v", destinations(got.Mounts))
			}
			c, err := Examine(dir, loading(hostConfig(t)))
			if c.Asks && c.Input.EditedByCDI || err != nil {
				t.Errorf("without its hooks it still counts as edited: %+v, %v", c, err)
			}
		})
	}
}

// The specification of nvidia-shimctl has no hooks: a variable marks it, and it mounts libraries
// where the loaders of images look.
func TestCDIOfShimctlIsTakenOver(t *testing.T) {
	m := simulated.Majors
	libs := "/" + simulated.Layout.LibDir()
	cuda := simulated.Root + libs + "/libcuda.so." + simulated.Version
	mount := func(source, dest string) specs.Mount {
		return specs.Mount{Source: source, Destination: dest, Type: "bind", Options: nvidiaMount}
	}
	for name, changed := range map[string]func(*specs.Spec){"alone": func(*specs.Spec) {}, "in a pod": inPod()} {
		t.Run(name, func(t *testing.T) {
			// An image's variable can be the last.
			spec := newSpec("NVIDIA_SHIM_CDI=1", "NVIDIA_VISIBLE_DEVICES=all")
			all(withNode(m.GPU, 255), withNode(m.GPU, simulated.GPUs[2].Minor), changed)(spec)
			spec.Linux.Devices[0].Path, spec.Linux.Devices[1].Path = "/dev/nvidiactl", "/dev/nvidia9"
			spec.Mounts = append(spec.Mounts,
				mount(cuda, "/usr/lib64/libcuda.so.1"), mount(cuda, libs+"/libcuda.so"),
				mount(cuda, view.Dir+"/lib64/libcuda.so.1"),                                // as run-args has it
				mount(filepath.Dir(cuda)+"/libcuda.so.470.1.2", "/usr/lib64/libcuda.so.1"), // of a removed driver
				mount(simulated.Root+"/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
				mount(cuda, "/opt/libcuda.so.1"), mount("/etc/hostname", "/usr/lib64/libother.so.1.2")) // a user's
			dir := newBundle(t, spec)
			plan := mustInject(t, hostConfig(t), dir)
			if showGPUs(plan) != "GPU 2" || strings.Join(plan.Capabilities, ",") != "compute,utility" {
				t.Errorf("%s, capabilities %q", showGPUs(plan), plan.Capabilities)
			}
			var left []string
			for _, m := range readSpec(t, dir).Mounts {
				if reflect.DeepEqual(m.Options, nvidiaMount) {
					left = append(left, m.Destination)
				}
			}
			if !slices.Equal(left, []string{"/opt/libcuda.so.1", "/usr/lib64/libother.so.1.2"}) {
				t.Errorf("mounts that stay: %q", left)
			}
		})
	}
}

// An image can set the variable that marks this specification, so the nodes decide.
func TestAnImageThatSetsTheMarkOfCDI(t *testing.T) {
	control := withNode(simulated.Majors.GPU, 255)
	table{
		env:  []string{"NVIDIA_SHIM_CDI=1"},
		show: func(p Plan) string { return fmt.Sprint(showGPUs(p), " ", p.Capabilities) },
		rows: []row{
			{name: "alone", want: "left alone"},
			{name: "with all", env: devices("all"), spec: inPod(), want: "starts without a GPU"},
			{name: "with an allocated GPU", env: append(devices("all"), caps("all")...), spec: inPod(2), want: "GPU 2 [compat32 compute graphics ngx utility video]"},
			{name: "with a node that is no GPU's", env: devices("all"), spec: all(inPod(), control, at("/dev/nvidiactl")), want: "the driver without a GPU [compute utility]"},
			{name: "with a GPU's node by another name", env: devices("all"), spec: all(inPod(), control, at("/dev/nvidia2")), want: "the driver without a GPU [compute utility]"},
		},
	}.run(t)
}

// at changes the path of the last node.
func at(name string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Linux.Devices[len(s.Linux.Devices)-1].Path = name }
}

// Nodes in the specification come from the user; the environment may come from the image.
func TestNodesOfTheUserLimitTheEnvironment(t *testing.T) {
	m := simulated.Majors
	gpu := func(i int) func(*specs.Spec) { return withNode(m.GPU, simulated.GPUs[i].Minor) }
	table{
		show: func(p Plan) string { return fmt.Sprint(showGPUs(p), p.Classes) },
		rows: []row{
			{name: "all of an image", env: devices("all"), spec: all(withNode(m.GPU, 255), gpu(0), gpu(1)), want: "GPUs 0, 1[]"},
			{name: "an old image", env: []string{"CUDA_VERSION=8.0.61"}, spec: gpu(2), want: "GPU 2[]"},
			{name: "other classes of an image", env: append(devices("all"), "NVIDIA_GDS=enabled"), spec: gpu(0), want: "GPU 0[]"},
			{name: "another GPU by name", env: devices("1"), spec: gpu(0), want: "refused: GPU \"1\" is not this container's: in the container's specification: "},
			{name: "one of several by name", env: devices("1"), spec: all(gpu(0), gpu(1)), want: "GPU 1[]"},
			{name: "all by a mount", spec: all(gpu(0), listing("all")), want: "every GPU[]"},
			{name: "privileged", env: devices("all"), spec: all(gpu(0), privileged), want: "every GPU[]"},
			{name: "no node of a GPU", env: devices("all"), spec: withNode(m.GPU, 255), want: "every GPU[]"},
		},
	}.run(t)
}

// Only what the specification contains is taken over.
func TestWhatIsTakenOver(t *testing.T) {
	m := simulated.Majors
	edited := func(change func(*specs.Spec), names ...string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			applyCDI(t, s, realCDI(t), names...)
			change(s)
		}
	}
	nothing, gpu1 := func(*specs.Spec) {}, "nvidia.com/gpu=1"
	const seven = "compat32,compute,display,graphics,ngx,utility,video"
	table{
		show: func(p Plan) string {
			return fmt.Sprint(showGPUs(p), p.Classes, p.IMEX, strings.Join(p.Capabilities, ","))
		},
		rows: []row{
			{name: "two of four", spec: edited(nothing, "nvidia.com/gpu=0", "nvidia.com/gpu=3"), want: "GPUs 0, 3[] []" + seven},
			{name: "an image that wants more", env: append(devices("all"), "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0"), spec: edited(nothing, gpu1), want: "GPU 1[] []" + seven},
			{name: "in a pod", spec: edited(inPod(), gpu1), want: "GPU 1[] []" + seven},
			{name: "a channel and an nvidia-fs node", spec: edited(all(withNode(m.IMEX, 2), withNode(m.FS, 0)), gpu1), want: "GPU 1[imex gds] [2]" + seven},
			{name: "an RDMA adapter", spec: edited(withNode(m.Verbs, 192), gpu1), want: "GPU 1[] []" + seven},
			{name: "capabilities of the environment", env: caps("utility"), spec: edited(nothing, gpu1), want: "GPU 1[] []utility"},
			{name: "no capability in the environment", env: caps(""), spec: edited(nothing, gpu1), want: "GPU 1[] []" + seven},
			{name: "hooks refused", spec: edited(nothing, gpu1), config: func(c *config.Config) { c.Policy.ForeignHooks = config.Refuse }, want: "refused: NVIDIA's OCI hook", kind: verdict.KindDenied},
			{name: "a limit of GPU memory", env: []string{"NVIDIA_GPU_MEMORY_LIMIT=1024"}, spec: edited(nothing, gpu1), want: "refused: limits GPU memory", kind: verdict.KindPrecondition},
			{name: "a request for GPU memory", env: []string{"NVIDIA_GPU_MEMORY_REQUEST=1"}, spec: edited(nothing, gpu1), want: "GPU 1[] []" + seven},
			{name: "a limit, mistyped", env: []string{"NVIDIA_GPU_MEMORY_LIMITS=1"}, spec: edited(nothing, gpu1), want: "GPU 1[] []" + seven},
		},
	}.run(t)
}

// nvidia-ctk writes a mount "void" into the device list since 1.20.2. The specifications are applied
// as containerd and Docker do, with and without the variable that a specification sets last.
func TestTheVoidMountOfNVIDIAsCDI(t *testing.T) {
	withoutHooks := func(s *specs.Spec) { s.Hooks = nil }
	cdi := func(names ...string) func(*specs.Spec) {
		return func(s *specs.Spec) { applyCDI(t, s, realCDI(t), names...) }
	}
	setting := func(value string) func(*specs.Spec) {
		return func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES="+value) }
	}
	const gds, channel = "nvidia.com/gds=all", "nvidia.com/imex-channel=1"
	table{
		env: caps("utility"),
		show: func(p Plan) string {
			for _, d := range p.Decisions {
				if d.Subject == "device-list mounts" {
					return d.Subject + " " + d.Decision
				}
			}
			return showAsked(p)
		},
		rows: []row{
			{name: "the mount alone", spec: listing("void"), want: "left alone"},
			{name: "beside other mounts", spec: listing("0", "1", "void"), want: "left alone"},
			{name: "beside a variable", env: devices("0"), spec: listing("void"), want: "GPU 0"},
			{name: "beside mounts and a variable", env: devices("all"), spec: listing("0", "1", "void"), want: "every GPU"},
			{name: "beside mounts that are invalid", env: devices("1"), spec: listing("cdi/foo", "void", "cdi/example.com/nic/0"), want: "GPU 1"},
			{name: "beside an old image's variables", env: []string{"CUDA_VERSION=8.0.61"}, spec: listing("0", "void"), want: "every GPU"},
			{name: "an image that may not ask", env: devices("all"), spec: listing("0", "void"), config: noEnv, want: "starts without a GPU"},
			{name: "below cdi", spec: listing("cdi/void"), want: `refused: "void" is not a CDI name`},
			{name: "the variable that names the list", env: devices(request.DeviceListDir), spec: listing("0", "void"), want: "refused: " + request.DeviceListDir + "/void ... do not count"},
			{name: "mounts not accepted", env: devices("0"), spec: listing("void"), config: noMounts, want: "GPU 0"},
			{name: "a channel's mount", env: devices("0"), spec: listing("1", "void", "imex/2"), want: "GPU 0, `channel2`"},
			{name: "of another source", env: devices("0"), spec: mounting("/dev/zero", request.DeviceListDir+"/void"), want: "GPU 0"},

			{name: "a GPU with hooks", spec: cdi("nvidia.com/gpu=1"), want: "GPU 1"},
			{name: "a GPU without hooks", spec: all(cdi("nvidia.com/gpu=1"), withoutHooks), want: "left alone"},
			{name: "a GPU without hooks, and a variable that comes last", spec: all(cdi("nvidia.com/gpu=1"), withoutHooks, setting("all")), want: "GPU 1"},
			{name: "a GPU without hooks in a pod", spec: all(inPod(), cdi("nvidia.com/gpu=1"), withoutHooks), want: "left alone"},
			{name: "gds alone", spec: cdi(gds), want: "left alone"},
			{name: "a channel alone", spec: cdi(channel), want: "left alone"},
			{name: "gds, and a variable that comes last", spec: all(cdi(gds), setting("2")), want: "GPU 2"},
			{name: "gds, and mounts of a device plugin", env: devices(request.DeviceListDir), spec: all(inPod(2), listing(simulated.GPUs[2].UUID), cdi(gds)), want: "left alone"},
			{name: "gds, and a variable of a device plugin", spec: all(inPod(2), listing("void"), cdi(gds), setting(simulated.GPUs[2].UUID)), want: "GPU 2"},
			{name: "a GPU with hooks, and gds", spec: cdi("nvidia.com/gpu=1", gds), want: "GPU 1, `nvidia-fs0`, `nvidia-fs1`"},
		},
	}.run(t)
}

// A CDI file has the numbers of the boot at which it was made.
func TestAStaleCDIFile(t *testing.T) {
	m := simulated.Majors
	mig := newMIGHost(t)
	// stale gives a node the major of another boot.
	stale := func(name string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			applyCDI(t, s, realCDI(t), "nvidia.com/gpu=1")
			i := slices.IndexFunc(s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == name })
			if i < 0 {
				withNode(1234, 7)(s)
				i = len(s.Linux.Devices) - 1
			}
			s.Linux.Devices[i].Path, s.Linux.Devices[i].Major = name, 1234
		}
	}
	const again = " ... it is from another boot, MIG layout or driver: make it again (nvidia-shimctl prepare --cdi; systemctl restart nvidia-cdi-refresh"
	uvm := fmt.Sprintf("refused: it has \"/dev/nvidia-uvm\" as c 1234:0, and this host as c %d:0", m.UVM)
	table{rows: []row{
		{name: "nvidia-uvm", spec: stale("/dev/nvidia-uvm"), want: uvm + again, kind: verdict.KindPrecondition},
		{name: "in a pod", spec: all(inPod(), stale("/dev/nvidia-uvm")), want: uvm + again, kind: verdict.KindPrecondition},
		{name: "an IMEX channel", spec: stale("/dev/nvidia-caps-imex-channels/channel0"), want: "refused: /dev/nvidia-caps-imex-channels/channel0" + again, kind: verdict.KindPrecondition},
		{name: "GDRCopy", spec: stale("/dev/gdrdrv"), want: "refused: /dev/gdrdrv" + again, kind: verdict.KindPrecondition},
		{name: "an RDMA adapter", spec: stale("/dev/infiniband/uverbs0"), want: "refused: /dev/infiniband/uverbs0" + again, kind: verdict.KindPrecondition},
		{name: "another device", spec: stale("/dev/fuse"), want: "GPU 1"},
		{name: "a MIG device", host: mig, want: "refused: " + mig.nodes(0)[0] + again, kind: verdict.KindPrecondition, spec: func(s *specs.Spec) {
			mig.inMIGPod(0)(s)
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: mig.nodes(0)[0], Type: "c", Major: 1234})
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/nvidia-cdi-hook"}}}
		}},
		{name: "without hooks, and a variable", env: devices("1"), spec: all(stale("/dev/nvidia-uvm"), func(s *specs.Spec) {
			s.Hooks, s.Process.Env = nil, append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=1")
		}), want: "refused: is already in the container's configuration as c 1234:0" + again},
		{name: "of a driver node that the host lacks", spec: stale("/dev/nvidia99"), want: "GPU 1"},
	}}.run(t)
}

// realCDI returns a directory with what nvidia-ctk 1.20.2 wrote for the simulated host: its GPUs, GDS
// and IMEX channels.
func realCDI(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o755))
	for _, mode := range []string{"nvml", "gds", "imex-channel"} {
		ctkSpec(t, simulated, dir, "1.20.2-"+mode+".yaml")
	}
	return dir
}
