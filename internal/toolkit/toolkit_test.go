package toolkit

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// load returns the configuration that the shim reads from the text.
func load(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Load(testtree.NewRoot(t).Write("config.toml", text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return c
}

func option(t *testing.T, r Report, key string) Option {
	t.Helper()
	for _, o := range r.Options {
		if o.Key == key {
			return o
		}
	}
	t.Errorf("the report has no %s", key)
	return Option{}
}

// unrestrict sets what the modes without requirements and capabilities become.
func unrestrict(c *config.Config) {
	c.Policy.DisableRequire = true
	c.Container.DefaultCapabilities = []string{"compute", "compat32", "graphics", "utility", "video", "display", "ngx"}
}

func TestFilesOfRealToolkits(t *testing.T) {
	for _, c := range []struct {
		name, file string
		// nodes are files that are there.
		nodes []string
		// want changes the default configuration to what comes out.
		want func(c *config.Config)
		// states are those of some options.
		states map[string]string
	}{
		{"the file of the package", "package.toml", nil, func(c *config.Config) {
			c.Host.LoadKernelModules = true
			unrestrict(c)
		}, map[string]string{
			"disable-require": None, "supported-driver-capabilities": None, "nvidia-container-cli.load-kmods": Carried,
			"nvidia-container-cli.ldconfig": None, "nvidia-container-runtime.mode": Carried, "nvidia-container-runtime.log-level": Default,
			"nvidia-container-runtime.modes.cdi.annotation-prefixes": Default, "nvidia-container-runtime.runtimes": Default,
			"nvidia-container-runtime.modes.csv.mount-spec-path": Default, "nvidia-ctk.path": None,
		}},
		{"the operator's, its nodes in /dev", "operator.toml", []string{"/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"}, func(c *config.Config) {
			c.Host.LoadKernelModules, c.Host.DriverRoot = true, "/run/nvidia/driver"
			c.Policy.AcceptEnvWhenUnprivileged = false
			unrestrict(c)
		}, map[string]string{
			"accept-nvidia-visible-devices-as-volume-mounts": Default, "accept-nvidia-visible-devices-envvar-when-unprivileged": Carried,
			"nvidia-container-cli.root": Carried, "nvidia-container-runtime.modes.cdi.default-kind": Attention,
			"nvidia-container-runtime.modes.cdi.annotation-prefixes": Default,
		}},
		{"the operator's, its nodes in the driver container alone", "operator.toml", []string{"/run/nvidia/driver/dev/nvidiactl"}, func(c *config.Config) {
			c.Host.LoadKernelModules, c.Host.DriverRoot, c.Host.DevRoot = true, "/run/nvidia/driver", "/run/nvidia/driver"
			c.Policy.AcceptEnvWhenUnprivileged = false
			unrestrict(c)
		}, map[string]string{"nvidia-container-cli.root": Carried}},
		{"one edited by hand", "edited.toml", nil, func(c *config.Config) {
			c.Host.DriverRoot = "/opt/driver"
			c.Policy.AcceptEnvWhenUnprivileged = false
			c.Policy.DisableRequire = true
			c.Policy.IgnoreIMEXChannels = true
			c.Container.AdditionalGIDs = false
			c.Container.SupportedCapabilities = []string{"compute", "utility"}
			c.Log.Level = "warn"
			c.Policy.SwarmResources = []string{"DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_FAST"}
		}, map[string]string{
			"disable-require": Carried, "supported-driver-capabilities": Carried, "no-such-option": Attention,
			"features.allow-cuda-compat-libs-from-container": Attention, "features.disable-imex-channel-creation": None,
			"features.ignore-imex-channel-requests": Carried, "features.no-additional-gids-for-device-nodes": Carried,
			"nvidia-container-cli.ldcache": Attention, "nvidia-container-cli.load-kmods": Default, "nvidia-container-cli.no-cgroups": Attention,
			"nvidia-container-cli.environment": Attention, "nvidia-container-cli.root": Carried, "nvidia-container-cli.user": None,
			"nvidia-container-runtime.log-level": Carried, "nvidia-container-runtime.runtimes": Attention,
			"nvidia-container-runtime.modes.legacy.cuda-compat-mode":     Attention,
			"nvidia-container-runtime.modes.cdi.spec-dirs":               Attention,
			"nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": Attention,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", c.file))
			testtree.Check(t, err)
			root := testtree.NewRoot(t)
			for _, name := range append(c.nodes, Paths[1]) {
				root.Write(name, string(text))
			}
			r, err := Read(root.Dir, Paths, config.DefaultPath)
			if err != nil || r.From != Paths[1] {
				t.Fatalf("%q %v", r.From, err)
			}
			got, want := load(t, r.Text), config.Default()
			c.want(want)
			if len(got.Host.DriverLibraries) == 0 {
				got.Host.DriverLibraries = want.Host.DriverLibraries
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got\n%+v\nwant\n%+v\nfrom\n%s", got, want, r.Text)
			}
			for key, state := range c.states {
				if o := option(t, r, key); o.State != state {
					t.Errorf("%s: %q, want %q (%s)", key, o.State, state, o.Why)
				}
			}
			for _, o := range r.Options {
				if (o.State == None || o.State == Attention) && o.Why == "" || (o.State == Carried) != (o.To != "") && o.State != Default {
					t.Errorf("%+v in\n%s", o, r.Text)
				}
			}
		})
	}
	if _, err := Read(t.TempDir(), Paths, config.DefaultPath); err == nil || !strings.Contains(err.Error(), "no configuration of NVIDIA's toolkit at "+Paths[0]) {
		t.Errorf("no file: %v", err)
	}
}

// A container of these modes is neither refused for what its image requires nor given fewer files.
func TestModes(t *testing.T) {
	for text, preserved := range map[string]bool{
		"":                 true,
		`mode = "auto"`:    true,
		`mode = "cdi"`:     true,
		`mode = "jit-cdi"`: true,
		`mode = "legacy"`:  false,
		`mode = "csv"`:     false,
	} {
		r, err := Convert("/", []byte("disable-require = false\nsupported-driver-capabilities = \"utility\"\n[nvidia-container-runtime]\n"+text))
		testtree.Check(t, err)
		want := config.Default()
		want.Container.SupportedCapabilities = []string{"utility"}
		if preserved {
			want = config.Default()
			unrestrict(want)
		}
		if got := load(t, r.Text); !reflect.DeepEqual(got.Container, want.Container) || got.Policy.DisableRequire != want.Policy.DisableRequire {
			t.Errorf("%q: %s", text, r.Text)
		}
		if note := strings.Join(r.Notes, "\n"); strings.Contains(note, "to be stricter") != preserved {
			t.Errorf("%q: notes %s", text, note)
		}
	}
}

// The toolkit's packages write every capability into their file, so that it is no wish of the
// operator's to give pods the nodes of a display.
func TestEveryCapabilityIsTheDefault(t *testing.T) {
	for _, value := range []string{"all", "compat32,compute,display,graphics,ngx,utility,video"} {
		r, err := Convert("/", []byte("supported-driver-capabilities = \""+value+"\"\nnvidia-container-runtime.mode = \"legacy\"\n"))
		if err != nil || option(t, r, "supported-driver-capabilities").State != Default || r.Text != "" {
			t.Errorf("%s: %v, %s", value, err, r.Text)
		}
	}
}

func TestWhatIsNotUnderstoodIsNotCarriedOver(t *testing.T) {
	for text, key := range map[string]string{
		`swarm-resource = "DOCKER_SWARM_RESOURCE"`:                                            "swarm-resource",
		`disable-require = "yes"`:                                                             "disable-require",
		`supported-driver-capabilities = "compute,magic"`:                                     "supported-driver-capabilities",
		`supported-driver-capabilities = ""`:                                                  "supported-driver-capabilities",
		`supported-driver-capabilities = 3`:                                                   "supported-driver-capabilities",
		`nvidia-container-cli.root = "driver"`:                                                "nvidia-container-cli.root",
		`nvidia-container-runtime.log-level = "loud"`:                                         "nvidia-container-runtime.log-level",
		`features.no-additional-gids-for-device-nodes = "maybe"`:                              "features.no-additional-gids-for-device-nodes",
		`nvidia-container-runtime.modes.cdi.spec-dirs = ["cdi"]`:                              "nvidia-container-runtime.modes.cdi.spec-dirs",
		`nvidia-container-cli.environment = true`:                                             "nvidia-container-cli.environment",
		`nvidia-container-runtime.runtimes = "/usr/bin/kata\"\n"`:                             "nvidia-container-runtime.runtimes",
		`nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks = ["enable-cuda-compat"]`: "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks",
		"\"odd\\u001bkey\" = 1":                                                               `"odd\x1bkey"`,
	} {
		r, err := Convert("/", []byte(text+"\nnvidia-container-runtime.mode = \"legacy\"\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if o := option(t, r, key); o.State != Attention || o.To != "" || o.Why == "" || r.Text != "" {
			t.Errorf("%s: %+v\n%s", text, o, r.Text)
		}
	}
	for _, mode := range []string{"csv", "new"} {
		r, err := Convert("/", []byte("nvidia-container-runtime.mode = '"+mode+"'"))
		if o := option(t, r, keyMode); err != nil || o.State != Attention || r.Text != "" {
			t.Errorf("%+v %v", o, err)
		}
	}
	broken, err := os.ReadFile("testdata/broken.toml")
	testtree.Check(t, err)
	if _, err := Convert("/", broken); err == nil || !strings.Contains(err.Error(), "line 1") || strings.Contains(err.Error(), "\n") {
		t.Errorf("broken TOML: %v", err)
	}
}

// Other names are reported, and do not keep those that fit from being carried over.
func TestSwarmResourcesThatFitAreCarriedOver(t *testing.T) {
	r, err := Convert("/", []byte("swarm-resource = \"DOCKER_SWARM_RESOURCE,DOCKER_RESOURCE_GPU\"\nnvidia-container-runtime.mode = \"legacy\"\n"))
	testtree.Check(t, err)
	o := option(t, r, "swarm-resource")
	if o.State != Attention || o.To != "policy.swarm-resources" || !strings.Contains(o.Why, "DOCKER_SWARM_RESOURCE") {
		t.Errorf("%+v", o)
	}
	if got := load(t, r.Text).Policy.SwarmResources; !slices.Equal(got, []string{"DOCKER_RESOURCE_GPU"}) {
		t.Errorf("%q", got)
	}
}

// A value survives the way through two files.
func TestValuesAreQuoted(t *testing.T) {
	const odd = "/opt/a \\\"b\\\"\\\\c\\u0007d 'e'"
	r, err := Convert("/", []byte("nvidia-container-cli.root = \""+odd+"\"\n"))
	testtree.Check(t, err)
	if got, want := load(t, r.Text).Host.DriverRoot, "/opt/a \"b\"\\c\ad 'e'"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzConvert holds that the shim can load what becomes of any file.
func FuzzConvert(f *testing.F) {
	names, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(names) == 0 {
		f.Fatal(names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("[nvidia-container-cli]\nroot = \"\\u0000\"\nload-kmods = 1979-05-27\n[nvidia-container-runtime]\nmode = [\"x\"]\n"))
	dir := f.TempDir()
	file := filepath.Join(dir, "config.toml")
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Convert(dir, text)
		if err != nil {
			return
		}
		if err := os.WriteFile(file, []byte(r.Text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(file); err != nil {
			t.Errorf("%v in\n%s", err, r.Text)
		}
	})
}
