//go:build gpu

package gpu

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// newGraphicsEnv is newEnv with the image of graphics programs besides.
func newGraphicsEnv(t testing.TB) *testenv.Env {
	t.Helper()
	tar, err := graphicsImage()
	if err != nil {
		t.Fatal(err)
	}
	env := newEnv(t, "")
	env.Import(t, tar)
	return env
}

// graphics is a container of the graphics image.
func graphics(env *testenv.Env, visible, capabilities, text string) testenv.RunOptions {
	o := script(env, visible, text+"; true", "NVIDIA_DRIVER_CAPABILITIES="+capabilities)
	o.Image = GraphicsRef
	return o
}

// lister is a way to list GPUs.
type lister struct {
	program string
	// with are the capabilities that it needs; without are capabilities that are not enough.
	with, without string
	// works are the texts on the line of a working device.
	works []string
}

// exactly runs the lister for every GPU, for all, and without its capability. A device has to do
// only what it can do outside a container too.
func (l lister) exactly(t *testing.T) {
	gpus := hostGPUs(t)
	env := newGraphicsEnv(t)
	outside := onHost(t, loadersOnHost(t), l.program)
	t.Logf("%s on the host:\n%s", l.program, outside)
	// A device that does not say which GPU it is can still be counted.
	listed := listedGPUs(outside, gpus)
	named := slices.Equal(listed, uuids(gpus))
	able := len(listed) == len(gpus)
	if !named {
		t.Logf("THE HOST'S LIST IS NOT ITS GPUS %v: inside, devices are counted: %v", uuids(gpus), able)
	}
	works := able
	for _, w := range l.works {
		works = works && strings.Count(outside, w) >= len(gpus)
	}
	if !works {
		t.Logf("THE HOST ITSELF DOES NOT SAY %q OF EVERY GPU: not wanted inside either", l.works)
	}
	shown := true
	check := func(visible string, granted []gpu) {
		t.Helper()
		out := env.MustRun(t, graphics(env, visible, l.with, l.program))
		t.Logf("NVIDIA_VISIBLE_DEVICES=%s:\n%s", visible, out)
		got := listedGPUs(out, gpus)
		shown = shown && slices.Equal(got, uuids(granted))
		if named && !slices.Equal(got, uuids(granted)) || able && len(got) != len(granted) {
			t.Errorf("NVIDIA_VISIBLE_DEVICES=%s: %s lists %v, want %v", visible, l.program, got, uuids(granted))
		}
		for _, g := range gpus {
			if !slices.Contains(uuids(granted), g.UUID) && slices.Contains(got, g.UUID) {
				t.Errorf("NVIDIA_VISIBLE_DEVICES=%s: %s lists %s, which was not granted", visible, l.program, g.UUID)
			}
		}
		for _, w := range l.works {
			enough := strings.Count(out, w) >= len(granted)
			shown = shown && enough
			if works && !enough {
				t.Errorf("NVIDIA_VISIBLE_DEVICES=%s: not every device says %q, and outside they do", visible, w)
			}
		}
	}
	for i, g := range gpus {
		check(g.Index, gpus[i:i+1])
	}
	if len(gpus) > 1 {
		last := gpus[len(gpus)-1]
		check(last.UUID+","+gpus[0].Bus, []gpu{gpus[0], last})
		check("all", gpus)
	}
	out := env.MustRun(t, graphics(env, "0", l.without, l.program))
	t.Logf("NVIDIA_DRIVER_CAPABILITIES=%s:\n%s", l.without, out)
	if got := listedGPUs(out, gpus); len(got) > 0 {
		t.Errorf("NVIDIA_DRIVER_CAPABILITIES=%s: %s lists %v", l.without, l.program, got)
	}
	if !shown && !t.Failed() {
		t.Logf("NOT SHOWN: %s does not list, or does not work, on this host itself; no container got more than was granted", l.program)
	}
}

func TestVulkanListsTheGrantedGPUAndNoOther(t *testing.T) {
	lister{program: "vkdevices", with: "graphics,utility", without: "compute,utility", works: []string{" created\n"}}.exactly(t)
}

func TestEGLListsTheGrantedGPUAndNoOther(t *testing.T) {
	lister{program: "egldevices", with: "graphics,utility", without: "compute,utility", works: []string{" initialized 1.", " draw ok"}}.exactly(t)
}

func TestOpenCLListsTheGrantedGPUAndNoOther(t *testing.T) {
	lister{program: "cldevices", with: "compute,utility", without: "utility"}.exactly(t)
}

// loaded runs the program loads in a container and returns which of the names were found, with the
// line of each.
func loaded(t *testing.T, env *testenv.Env, capabilities string, names ...string) map[string]string {
	t.Helper()
	return loadLines(env.MustRun(t, graphics(env, "0", capabilities, "loads "+strings.Join(names, " "))))
}

func loadLines(out string) map[string]string {
	lines := map[string]string{}
	for line := range strings.Lines(out) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[name] = rest
	}
	return lines
}

func isLoaded(line string) bool { return strings.HasPrefix(line, "ok ") }

func TestVideoLibrariesLoadWithTheCapabilityOnly(t *testing.T) {
	env := newGraphicsEnv(t)
	names := []string{
		"libnvcuvid.so.1:cuvidGetDecoderCaps", "libnvidia-encode.so.1:NvEncodeAPIGetMaxSupportedVersion",
		"libnvidia-opticalflow.so.1:NvOFAPICreateInstanceCuda",
	}
	loaders, shown := loadersOnHost(t), true
	outside := loadLines(onHost(t, loaders, "loads", names...))
	t.Logf("on the host: %v", outside)
	for _, capabilities := range []string{"video,utility", "compute,video,utility", "all", "compute,utility,graphics"} {
		lines := loaded(t, env, capabilities, names...)
		t.Logf("%s: %v", capabilities, lines)
		for name, line := range lines {
			switch want := strings.Contains(capabilities, "video") || capabilities == "all"; {
			case want && !isLoaded(outside[name]):
				shown = shown && isLoaded(line)
				t.Logf("THE HOST ITSELF SAYS OF %s: %s", name, outside[name])
			case want && !isLoaded(line) && strings.Contains(line, "libcuda.so.1:"):
				t.Logf("%s needs CUDA, which %s has not", name, capabilities)
			case want != isLoaded(line):
				t.Errorf("NVIDIA_DRIVER_CAPABILITIES=%s: %s %s", capabilities, name, line)
			}
		}
	}
	decoder := onHost(t, loaders, "video")
	inside := env.MustRun(t, graphics(env, "0", "compute,video,utility", "video"))
	t.Logf("on the host:\n%sinside:\n%s", decoder, inside)
	// Outside, the first GPU is CUDA's fastest; inside, it is the granted one. On all our hosts
	// with several GPUs these are of one kind.
	if strings.Contains(decoder, "h264 supported 1") && !strings.Contains(inside, "h264 supported 1") {
		t.Error("the decoder answers outside of a container only")
	}
	if strings.Contains(decoder, "encode version") && !strings.Contains(inside, "encode version") {
		t.Error("the encoder's library answers outside of a container only")
	}
	if !strings.Contains(inside, "h264 supported 1") || !strings.Contains(inside, "encode version") {
		shown = false
	}
	if !shown && !t.Failed() {
		t.Log("NOT SHOWN: the video libraries do not work on this host itself")
	}
}

// Every library of the driver that opens on the host opens in a container that has
// all capabilities.
func TestWhatLoadsOnTheHostLoadsInside(t *testing.T) {
	env := newGraphicsEnv(t)
	var names []string
	for _, file := range infoFiles(t, env).all() {
		if !strings.HasPrefix(path.Base(file), "lib") || !strings.Contains(path.Base(file), ".so") {
			continue
		}
		name, err := soname(file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	outside := loadLines(onHost(t, loadersOnHost(t), "loads", names...))
	// libvdpau opens its backend by path, in a directory of its own (module_dir in
	// vdpau_wrapper.c): there it is, and in no loader's cache.
	const backend = "libvdpau_nvidia.so.1"
	plugin := "/" + images.LibraryPath("vdpau/"+backend)
	inside := loaded(t, env, "all", append(slices.Clone(names), plugin)...)
	inside[backend] = inside[plugin]
	for _, name := range names {
		t.Logf("%-40s outside: %s; inside: %s", name, outside[name], inside[name])
		if !isLoaded(outside[name]) || isLoaded(inside[name]) {
			continue
		}
		// A library of the distribution's, which this image does not have.
		if missing, _, _ := strings.Cut(inside[name], ": cannot open shared object"); missing != inside[name] && missing != name && !slices.Contains(names, missing) {
			t.Logf("%s needs %s, which the image does not have", name, missing)
			continue
		}
		t.Errorf("%s opens on the host, and inside: %s", name, inside[name])
	}
}

// driverFiles are the driver's files by capability, as `nvidia-shimctl info` lists them.
type driverFiles map[string][]string

func (f driverFiles) all() []string {
	var all []string
	for _, list := range f {
		all = append(all, list...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func infoFiles(t *testing.T, env *testenv.Env) driverFiles {
	t.Helper()
	var info struct{ Files driverFiles }
	ctlJSON(t, env, &info, "info")
	if len(info.Files) == 0 {
		t.Fatal("nvidia-shimctl info lists no files")
	}
	return info.Files
}
