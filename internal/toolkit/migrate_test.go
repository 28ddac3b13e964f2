package toolkit

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
)

func migrated(t *testing.T, name string, there ...string) *Report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Toolkit(text, func(path string) bool { return slices.Contains(there, path) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// load is what the shim makes of the text.
func load(t *testing.T, text string) *config.Config {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(name)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return c
}

func (r *Report) option(t *testing.T, key string) Option {
	t.Helper()
	for _, o := range r.Options {
		if o.Key == key {
			return o
		}
	}
	t.Errorf("nothing is said of %s", key)
	return Option{}
}

func TestFilesOfRealToolkits(t *testing.T) {
	for _, c := range []struct {
		name  string
		file  string
		there []string
		// want changes the default configuration to what comes out.
		want func(c *config.Config)
		// states are those of some options.
		states map[string]string
	}{
		{"the file of the package", "package.toml", nil, func(c *config.Config) {
			c.Host.LoadKernelModules = true
		}, map[string]string{
			"disable-require": Default, "supported-driver-capabilities": Default, "nvidia-container-cli.load-kmods": Carried,
			"nvidia-container-cli.ldconfig": None, "nvidia-container-runtime.mode": None, "nvidia-container-runtime.log-level": Default,
			"nvidia-container-runtime.modes.cdi.annotation-prefixes": Default, "nvidia-container-runtime.runtimes": Default,
			"nvidia-container-runtime.modes.csv.mount-spec-path": Default, "nvidia-ctk.path": None,
		}},
		{"the operator's, its nodes in /dev", "operator.toml", []string{"/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"}, func(c *config.Config) {
			c.Host.LoadKernelModules, c.Host.DriverRoot = true, "/run/nvidia/driver"
			c.Policy.AcceptEnvWhenUnprivileged = false
		}, map[string]string{
			"accept-nvidia-visible-devices-as-volume-mounts": Default, "accept-nvidia-visible-devices-envvar-when-unprivileged": Carried,
			"nvidia-container-cli.root": Carried, "nvidia-container-runtime.modes.cdi.default-kind": Attention,
			"nvidia-container-runtime.modes.cdi.annotation-prefixes": Default,
		}},
		{"the operator's, its nodes in the driver container alone", "operator.toml", []string{"/run/nvidia/driver/dev/nvidiactl"}, func(c *config.Config) {
			c.Host.LoadKernelModules, c.Host.DriverRoot, c.Host.DevRoot = true, "/run/nvidia/driver", "/run/nvidia/driver"
			c.Policy.AcceptEnvWhenUnprivileged = false
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
			c.Host.CDISpecDirs = []string{"/opt/cdi"}
		}, map[string]string{
			"disable-require": Carried, "supported-driver-capabilities": Carried, "no-such-option": Attention,
			"features.allow-cuda-compat-libs-from-container": Attention, "features.disable-imex-channel-creation": None,
			"features.ignore-imex-channel-requests": Carried, "features.no-additional-gids-for-device-nodes": Carried,
			"nvidia-container-cli.ldcache": Attention, "nvidia-container-cli.load-kmods": Default, "nvidia-container-cli.no-cgroups": Attention,
			"nvidia-container-cli.environment": Attention, "nvidia-container-cli.root": Carried, "nvidia-container-cli.user": None,
			"nvidia-container-runtime.log-level": Carried, "nvidia-container-runtime.runtimes": Attention,
			"nvidia-container-runtime.modes.legacy.cuda-compat-mode":     Attention,
			"nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": None,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := migrated(t, c.file, c.there...)
			want := config.Default()
			c.want(want)
			got := load(t, r.Text)
			if len(got.Host.DriverLibraries) == 0 {
				got.Host.DriverLibraries = want.Host.DriverLibraries
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got\n%+v\nwant\n%+v\nfrom\n%s", got, want, r.Text)
			}
			for key, state := range c.states {
				if o := r.option(t, key); o.State != state {
					t.Errorf("%s: %q, want %q (%s)", key, o.State, state, o.Why)
				}
			}
			for _, o := range r.Options {
				if (o.State == None || o.State == Attention) && o.Why == "" {
					t.Errorf("nobody says why: %+v", o)
				}
				if (o.State == Carried) != (o.To != "" && strings.Contains(r.Text, strings.SplitN(o.To, ".", 2)[1][:5])) && o.State != Default {
					t.Errorf("%+v in\n%s", o, r.Text)
				}
			}
			if len(r.Notes) == 0 {
				t.Error("no word about Kubernetes")
			}
		})
	}
}

func TestWhatIsNotUnderstoodIsNotCarriedOver(t *testing.T) {
	for text, key := range map[string]string{
		`disable-require = "yes"`:                                 "disable-require",
		`supported-driver-capabilities = "compute,magic"`:         "supported-driver-capabilities",
		`supported-driver-capabilities = 3`:                       "supported-driver-capabilities",
		`nvidia-container-cli.root = "driver"`:                    "nvidia-container-cli.root",
		`nvidia-container-runtime.log-level = "loud"`:             "nvidia-container-runtime.log-level",
		`nvidia-container-runtime.mode = "csv"`:                   "nvidia-container-runtime.mode",
		`nvidia-container-runtime.mode = "new"`:                   "nvidia-container-runtime.mode",
		`nvidia-container-runtime.modes.cdi.spec-dirs = [1]`:      "nvidia-container-runtime.modes.cdi.spec-dirs",
		`features.no-additional-gids-for-device-nodes = "maybe"`:  "features.no-additional-gids-for-device-nodes",
		`swarm-resource = "DOCKER_RESOURCE_GPU,MY_GPU"`:           "swarm-resource",
		`nvidia-container-runtime.modes.cdi.spec-dirs = ["cdi"]`:  "nvidia-container-runtime.modes.cdi.spec-dirs",
		`nvidia-container-cli.environment = true`:                 "nvidia-container-cli.environment",
		`nvidia-container-runtime.runtimes = "/usr/bin/kata\"\n"`: "nvidia-container-runtime.runtimes",
	} {
		r, err := Toolkit([]byte(text), func(string) bool { return false })
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if o := r.option(t, key); o.State != Attention || o.To != "" || o.Why == "" || r.Text != "" {
			t.Errorf("%s: %+v\n%s", text, o, r.Text)
		}
	}
	broken, err := os.ReadFile("testdata/broken.toml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Toolkit(broken, nil); err == nil || !strings.Contains(err.Error(), "line 1") || strings.Contains(err.Error(), "\n") {
		t.Errorf("broken TOML: %v", err)
	}
}

// A value stays itself on its way through two files.
func TestValuesAreQuoted(t *testing.T) {
	const odd = "/opt/a \\\"b\\\"\\\\c\\u0007d"
	r, err := Toolkit([]byte("nvidia-container-cli.root = \""+odd+"\"\n"), func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := load(t, r.Text).Host.DriverRoot, "/opt/a \"b\"\\c\ad"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
