package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

var check = testtree.Check

func write(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.toml")
	check(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestAnEmptyFileIsTheDefault(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "[host]\n[container]\n[policy]\n[log]\n"} {
		c, err := Load(write(t, text))
		if err != nil || !reflect.DeepEqual(c, Default()) {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
	if _, err := Default().validate(); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
}

// The default is a promise: in Kubernetes, images are never trusted.
func TestTheDefaultIsTheSafeOne(t *testing.T) {
	c := Default()
	if c.Policy.Kubernetes != Enforce || c.Policy.AcceptEnvWithoutKubelet || !slices.Equal(c.Policy.TrustedNamespaces, []string{"kube-system"}) || len(c.Policy.AllowFromEnvironment) != 0 || c.Policy.ForeignHooks != Replace || c.Host.StateDir != "/run/nvidia-shim" ||
		!slices.Equal(c.Container.DefaultCapabilities, []string{"compute", "utility"}) {
		t.Errorf("default %+v", c)
	}
	c.Container.DefaultCapabilities[0] = "changed"
	c.Policy.TrustedNamespaces[0] = "changed"
	if d := Default(); d.Container.DefaultCapabilities[0] == "changed" || d.Policy.TrustedNamespaces[0] == "changed" {
		t.Error("two defaults share their lists")
	}
}

func TestWhatTheFileSaysReplacesTheDefaultKeyByKey(t *testing.T) {
	c, err := Load(write(t, `
[host]
driver-root = "/run/nvidia/driver/"
driver-libraries = ["/opt//lib"]
[container]
supported-capabilities = ["utility"]
additional-gids = false
[policy]
ignore-imex-channels = true
trusted-namespaces = []
kubernetes = "audit"
allow-from-environment = ["imex", "gds", "gdrcopy", "mofed", "nvswitch"]
[log]
level = "debug"
`))
	check(t, err)
	want := Default()
	want.Host.DriverRoot, want.Host.DriverLibraries = "/run/nvidia/driver", []string{"/opt/lib"}
	want.Container.SupportedCapabilities = []string{"utility"}
	want.Container.AdditionalGIDs, want.Policy.IgnoreIMEXChannels = false, true
	want.Policy.AllowFromEnvironment = []string{"imex", "gds", "gdrcopy", "mofed", "nvswitch"}
	want.Policy.TrustedNamespaces, want.Policy.Kubernetes, want.Log.Level = []string{}, Audit, "debug"
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestAnErrorNamesFileKeyAndValueInOneLine(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		says       []string
	}{
		{"an unknown key", "[host]\ndriver-rot = \"/\"\n", []string{"line 2: ", "host.driver-rot"}},
		{"an unknown table", "[hosts]\nx = 1\n", []string{"line 1: ", "hosts"}},
		{"another case", "[Host]\nDriver-Root = \"x\"\n", []string{"line 2: ", "host.driver-root"}},
		{"a relative path", "[host]\ndev-root = \"dev\"\n", []string{"line 2: ", "host.dev-root", `"dev"`, "absolute"}},
		{"an empty path", "[host]\nstate-dir = \"\"\n", []string{"line 2: ", "host.state-dir"}},
		{"the root as state directory", "[host]\nstate-dir = \"/run/..\"\n", []string{"line 2: ", "host.state-dir", `"/"`}},
		{"a relative library directory", "[host]\ndriver-libraries = [\n\"/a\", \"b\"]\n", []string{"line 2: ", "host.driver-libraries", `"b"`}},
		{"an unknown capability", "[log]\n\n[container]\ndefault-capabilities = [\"compute\", \"magic\"]\n", []string{"line 4: ", "container.default-capabilities", `"magic"`, "compute"}},
		{"an unknown supported capability", "[container]\nsupported-capabilities = [\"all\"]\n", []string{"line 2: ", "container.supported-capabilities", `"all"`}},
		{"an unknown mode", "log.level = \"info\"\npolicy.kubernetes = \"trust\"\n", []string{"line 2: ", "policy.kubernetes", `"trust"`, "trust-env"}},
		{"an unknown class of devices", "[policy]\nallow-from-environment = [\"imex\", \"gpu\"]\n", []string{"line 2: ", "policy.allow-from-environment", `"gpu"`, "gdrcopy"}},
		{"an unknown daemon", "[container]\nsockets = [\"mps\", \"cuda\"]\n", []string{"line 2: ", "container.sockets", `"cuda"`, "persistenced"}},
		{"a relative pipe directory", "[host]\nmps-pipe-directory = \"mps\"\n", []string{"line 2: ", "host.mps-pipe-directory", `"mps"`}},
		{"a variable that is none of swarm's", "[policy]\nswarm-resources = [\"GPU\"]\n", []string{"line 2: ", "policy.swarm-resources", `"GPU"`, "DOCKER_RESOURCE_"}},
		{"a swarm resource without a kind", "[policy]\nswarm-resources = [\"DOCKER_RESOURCE_\"]\n", []string{"line 2: ", "policy.swarm-resources"}},
		{"an unknown hook policy", "[policy]\nforeign-hooks = \"keep\"\n", []string{"line 2: ", "policy.foreign-hooks", `"keep"`, "replace"}},
		{"an unknown level", "# a comment\n[log]\nlevel = \"trace\"\n", []string{"line 3: ", "log.level", `"trace"`, "debug"}},
		{"an unknown level in an inline table", "\nlog = {level = \"trace\"}\n", []string{"line 2: ", "log.level", `"trace"`, "debug"}},
		{"a number for a path", "[host]\ndriver-root = 1\n", []string{`line 2: key "host.driver-root": want a string, not a number`}},
		{"a fraction for a path", "[host]\ndriver-root = 1.5\n", []string{"want a string, not a number"}},
		{"a date for a level", "[log]\nlevel = 1979-05-27\n", []string{`line 2: key "log.level": want a string, not a local date`}},
		{"a string for a list", "[policy]\ntrusted-namespaces = \"x\"\n", []string{`line 2: key "policy.trusted-namespaces": want a list of strings, not a string`}},
		{"a string for a boolean", "[policy]\naccept-env-when-unprivileged = \"false\"\n", []string{`line 2: key "policy.accept-env-when-unprivileged": want true or false, not a string`}},
		{"a boolean for a string", "[log]\nlevel = true\n", []string{"want a string, not true or false"}},
		{"a list with a number", "[container]\ndefault-capabilities = [\n1]\n", []string{`line 3: key "container.default-capabilities": want a string, not a number`}},
		{"a list in a list", "[container]\ndefault-capabilities = [\"utility\", [\"compute\"]]\n", []string{`line 2: key "container.default-capabilities": want a string, not a list`}},
		{"a list for a string", "[host]\nstate-dir = [\"/x\"]\n", []string{`line 2: key "host.state-dir": want a string, not a list`}},
		{"a table for a string", "[host.state-dir]\n", []string{`line 1: key "host.state-dir": want a string, not a table`}},
		{"a table for a boolean", "[policy.disable-require]\n", []string{"want true or false, not a table"}},
		{"an inline table for a list", "[container]\nsockets = {a = 1}\n", []string{`line 2: key "container.sockets": want a list of strings, not a table`}},
		{"a table for a list", "[container.sockets]\nx = 1\n", []string{`line 1: key "container.sockets"`, "not a table"}},
		{"a key below a string", "host.state-dir.x = 1\n", []string{"line 1: ", "host.state-dir", "want a string, not a table"}},
		{"a number for a table", "\npolicy = 1\n", []string{`line 2: key "policy": want a table, not a number`}},
		{"a list of tables for a table", "[[policy]]\n", []string{`line 1: key "policy": want a table, not a list of tables`}},
		{"a list for a table", "log = []\n", []string{`line 1: key "log": want a table, not a list`}},
		{"a number that is too large", "[log]\nlevel = 99999999999999999999\n", []string{"line 2: ", "log.level"}},
		{"a key twice", "[log]\nlevel = \"info\"\nlevel = \"info\"\n", []string{"line 3: ", "level"}},
		{"a table three times", "[log]\n[log]\n[log]\n", []string{"line 2: ", "log"}},
		{"no TOML", "host: {}\n", []string{"line 1: "}},
		{"a string without an end", "[log]\nlevel = \"x\n", []string{"line 2: "}},
		{"a value over two lines", "[policy]\nkubernetes = \"\"\"a\nb\"\"\"\n", []string{"line 2: ", "policy.kubernetes", `"a\nb"`}},
	} {
		name := write(t, tc.text)
		_, err := Load(name)
		if err == nil || !isPlain(err) {
			t.Errorf("%s: error %v, want one plain line", tc.name, err)
			continue
		}
		for _, w := range append(tc.says, "configuration "+name+": line ") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %q does not say %q", tc.name, err, w)
			}
		}
	}
}

// isPlain reports whether an error is one line without Go's names.
func isPlain(err error) bool {
	return !regexp.MustCompile(`[\n\r]| toml: |struct|\[\]string|\bbool\b|uint32|(?i:config\.(host|container|policy|log|config)\b)`).MatchString(err.Error())
}

// The file's content steers mounts.
func TestT61AFileThatOthersCouldHaveWrittenIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the test changes owners: run it as root")
	}
	good := "[log]\nlevel = \"debug\"\n"
	for _, tc := range []struct {
		name   string
		change func(name string) error
		says   string // "" where it is taken
	}{
		{"of root", func(string) error { return nil }, ""},
		{"of another user", func(n string) error { return os.Chown(n, 1000, 0) }, "uid 1000"},
		{"writable by a group", func(n string) error { return os.Chmod(n, 0o664) }, "0664"},
		{"a link to one of another user", func(n string) error {
			return errors.Join(os.Rename(n, n+".real"), os.Chown(n+".real", 1000, 0), os.Symlink(n+".real", n))
		}, "uid 1000"},
		{"a link to one of root", func(n string) error {
			return errors.Join(os.Rename(n, n+".real"), os.Symlink(n+".real", n))
		}, ""},
	} {
		name := write(t, good)
		check(t, tc.change(name))
		c, err := Load(name)
		switch {
		case tc.says == "":
			if err != nil || c.Log.Level != "debug" {
				t.Errorf("%s: %+v, %v", tc.name, c, err)
			}
		case err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), name):
			t.Errorf("%s: error %v, want one that says %q", tc.name, err, tc.says)
		}
	}
}

func TestTheEnvironmentOfContainerdNamesTheFile(t *testing.T) {
	t.Setenv(EnvFile, write(t, "[log]\nlevel = \"warn\"\n"))
	if c, err := Find(""); err != nil || c.Log.Level != "warn" {
		t.Errorf("%+v, %v", c, err)
	}
	// A named file must exist: its absence does not mean the default.
	t.Setenv(EnvFile, filepath.Join(t.TempDir(), "none.toml"))
	if _, err := Find(""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a named file that is missing: %v", err)
	}
}

func TestAHandlersTableOverridesItsKeysOnly(t *testing.T) {
	c := Default()
	c.Policy.TrustedNamespaces = []string{"a", "b", "c"}
	err := c.Override([]byte("[policy]\nkubernetes = \"trust-env\"\ntrusted-namespaces = [\"z\"]\n[container]\ndefault-capabilities = [\"utility\"]\n"))
	want := Default()
	want.Policy.Kubernetes, want.Policy.TrustedNamespaces = TrustEnv, []string{"z"}
	want.Container.DefaultCapabilities = []string{"utility"}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v (%v)", c, want, err)
	}
	if err := c.Override(nil); err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("nothing to override: %v", err)
	}
	for text, says := range map[string]string{
		"[host]\ndriver-root = \"/x\"\n":                  "host",
		"[log]\nlevel = \"debug\"\n":                      "log",
		"[policy]\nkubernetes = \"no\"\n":                 "policy.kubernetes",
		"[policy]\nunknown = 1\n":                         "policy.unknown",
		"[container]\nsupported-capabilities = [\"x\"]\n": "container.supported-capabilities",
		"[container]\ndefault-capabilities = \"compute\"": `key "container.default-capabilities": want a list of strings, not a string`,
	} {
		if err := Default().Override([]byte(text)); err == nil || !strings.Contains(err.Error(), says) || !isPlain(err) || strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: error %v, want one plain line, without a line's number, that says %q", text, err, says)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte("[host]\ndriver-root = \"/run/nvidia/driver\"\ndriver-libraries = [\"/a\"]\n"))
	f.Add([]byte("[policy]\nkubernetes = \"audit\"\ntrusted-namespaces = [\"x\"]\naccept-env-when-unprivileged = false\n"))
	f.Add([]byte("[container]\ndefault-capabilities = [\"compute\"]\n[log]\nlevel = \"debug\"\n"))
	f.Add([]byte("[policy]\nkubernetes = \"\"\"a\nb\"\"\"\n"))
	f.Add([]byte("host.driver-root = 1979-05-27T07:32:00Z"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(dir, "config.toml")
		check(t, os.WriteFile(name, data, 0o600))
		c, err := Load(name)
		if err != nil {
			if !strings.Contains(err.Error(), ": line ") || strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error %q is not one line that names that of the file", err)
			}
			return
		}
		// Validating again changes nothing.
		before := *c
		if _, err := c.validate(); err != nil || !reflect.DeepEqual(before, *c) {
			t.Errorf("validated again: %v", err)
		}
		_ = Default().Override(data)
	})
}
