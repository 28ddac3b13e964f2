package runtimeclass

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// invented is all that a further daemon needs. Its configuration has a line "handler = program" for
// each runtime.
type invented struct{}

const inventedConfig = "/etc/invented.conf"

func (invented) daemon() Daemon {
	return Daemon{Name: "invented", Title: "Invented", Process: "inventd", Config: inventedConfig, Signs: []string{inventedConfig}, Programs: inServicePath("inventd")}
}

func (invented) owns(containerd procfs.Process) bool {
	return containerd.Program == "/opt/invented/containerd"
}

func (invented) runtimes(h Host, file string) (map[string]Runtime, error) {
	text, err := h.Read(file)
	list := map[string]Runtime{}
	for line := range strings.Lines(string(text)) {
		name, program, _ := strings.Cut(strings.TrimSpace(line), " = ")
		if r := (Runtime{Type: program}); r.Ours() {
			list[name] = r
		}
	}
	return list, err
}

func (invented) files(p *Plan, o Options, _ string) ([]configFile, error) {
	f, err := p.Host.readConfigFile(o.ConfigFile)
	return []configFile{f}, err
}

func (d invented) register(p *Plan, o Options) (none edited, err error) {
	files, err := d.files(p, o, "")
	if err != nil {
		return none, err
	}
	after := string(files[0].original) + tomledit.Block(o.Registration.Handler+" = "+o.Registration.shim()+"\n")
	return edited{configFile: files[0], after: []byte(after), handler: o.Registration.Handler}, nil
}

func (invented) restart(Host, bool) Restart {
	return Restart{Verb: "restart", Units: []string{"inventd"}, stops: "containers stop"}
}

func (d invented) byHand(p *Plan, o Options) []string {
	if o.Target == "invented" {
		return nil
	}
	list, _ := d.runtimes(p.Host, inventedConfig)
	return named(inventedConfig, list)
}

func addInvented(t *testing.T) {
	t.Helper()
	before := registrars
	registrars = append([]registrar{invented{}}, before...)
	t.Cleanup(func() { registrars = before })
}

// A daemon that is one type in one file is found, installed for and removed again.
func TestADaemonIsOneFile(t *testing.T) {
	addInvented(t)
	h, proc := hostWith(t, map[string]string{inventedConfig: "debug = no\n", DefaultDockerConfig: "{}\n"}, []string{"/usr/bin/inventd --config=" + inventedConfig}, nil)
	found := Find(h, proc, "")
	if len(found) != 1 || found[0].String() != "invented (/usr/bin/inventd runs with /etc/invented.conf)" || found[0].Program != "/usr/bin/inventd" {
		t.Fatalf("found %v", found)
	}
	if d := DaemonOf("invented"); !d.HasConfig() || Daemons()[1].Name != d.Name {
		t.Errorf("%+v is not among %+v", d, Daemons())
	}
	before := testtree.Contents(t, h.Root)
	o := options(t)
	o.Target, o.ConfigFile = found[0].Target, found[0].ConfigFile
	for range 2 {
		p := applied(t)(Install(h, o))
		if text := string(read(t, h.Real(inventedConfig))); strings.Count(text, "nvidia = /usr/local/bin/"+version.Shim) != 1 || !strings.HasPrefix(text, "debug = no\n") {
			t.Errorf("installed:\n%s", text)
		}
		if p.Restart.String() != "systemctl restart inventd" || p.Restart.Containers() != "containers stop" {
			t.Errorf("%s: %s", p.Restart, p.Restart.Containers())
		}
	}
	applied(t)(Install(Host{Tree: hosttree.Tree{Root: h.Root}}, withDocker(o)))
	if list, err := Registered(h, o); err != nil || len(list) != 2 || list[1].Target != "invented" {
		t.Errorf("registrations %+v, %v", list, err)
	}
	if p := uninstall(t, h, withDocker(o)); len(p.NeededBy) != 0 || programs(t, h) == 0 {
		t.Errorf("needed by %v, %d programs", p.NeededBy, programs(t, h))
	}
	uninstall(t, h, o)
	if now := testtree.Contents(t, h.Root); !reflect.DeepEqual(now, before) {
		t.Errorf("not as before: %v", slices.Sorted(maps.Keys(now)))
	}
}

// Another daemon's removal leaves the programs that a runtime of the daemon starts.
func TestARuntimeOfAFurtherDaemonKeepsThePrograms(t *testing.T) {
	addInvented(t)
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	write(t, h.Real(inventedConfig), "gpu = /usr/local/bin/"+version.Shim+"\n")
	applied(t)(Install(h, o))
	if p := uninstall(t, h, o); !slices.Equal(p.NeededBy, []string{inventedConfig + ": gpu"}) || programs(t, h) == 0 {
		t.Errorf("needed by %v, %d programs", p.NeededBy, programs(t, h))
	}
}

// The record of a later version can name a daemon that this one does not know.
func TestAnUnknownDaemonIsRefused(t *testing.T) {
	h, o := containerdTree(t, "v2-1.7.toml", "", v1735), options(t)
	o.Target = "invented"
	for _, plan := range []func(Host, Options) (Plan, error){Install, Uninstall} {
		before := testtree.Contents(t, h.Root)
		if _, err := plan(h, o); err == nil || !strings.Contains(err.Error(), `no daemon is called "invented"`) || !reflect.DeepEqual(testtree.Contents(t, h.Root), before) {
			t.Errorf("error %v", err)
		}
	}
}
