package systemd

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

const (
	packagedShim = "/usr/bin/" + version.Shim
	packagedCtl  = "/usr/bin/" + version.Ctl
	serveUnit    = "nvidia-shim-serve.service"
	nextCommand  = "to register the runtime, run: nvidia-shimctl install"
)

// packageFile copies the package of this architecture that `make packages` made into the machine
// and returns its name on the host.
func (m *machine) packageFile(t *testing.T, pattern string) string {
	t.Helper()
	dist := filepath.Join(testenv.ShimDir(), "../dist")
	found, err := filepath.Glob(filepath.Join(dist, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s has %d files %s, %v: run make packages", dist, len(found), pattern, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(m.dir, "srv", filepath.Base(found[0]))
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// newerDeb makes the package of a later version, with another shim and default configuration.
func newerDeb(t *testing.T, deb string) string {
	t.Helper()
	tree, newer := filepath.Join(t.TempDir(), "tree"), deb+".newer.deb"
	script := `set -e
dpkg-deb -R "$1" "$2"
sed -i 's/^Version: .*/&.1/' "$2/DEBIAN/control"
echo '# new default' >>"$2/etc/nvidia-shim/config.toml"
echo newer >>"$2/usr/bin/containerd-shim-nvidia-v2"
dpkg-deb --root-owner-group -b "$2" "$3"`
	if out, err := exec.Command("sh", "-c", script, "sh", deb, tree, newer).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return newer
}

// newerRPM makes the package of a later version from the archive, with another default configuration.
func (m *machine) newerRPM(t *testing.T) string {
	t.Helper()
	script := `set -e
go build -C ../../packaging -trimpath -o "$1/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
tar -xzf "$2" -C "$1" --strip-components=1
cp ../../packaging/nfpm.yaml ../../packaging/*.sh "$1"
cd "$1"
echo '# new default' >>config.toml
./nfpm package --packager rpm --target "$2.newer.rpm"`
	archive := m.packageFile(t, "*_linux_"+runtime.GOARCH+".tar.gz")
	cmd := exec.Command("sh", "-c", script, "sh", t.TempDir(), archive)
	cmd.Env = append(os.Environ(), "PACKAGE_VERSION=99.0", "ARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return "/srv/" + filepath.Base(archive) + ".newer.rpm"
}

// etc is what /etc of the machine holds, with modes and owners, without the shim's own directory.
func (m *machine) etc(t *testing.T) string {
	t.Helper()
	return m.run(t, "sh", "-c", "cd /etc && find . -path ./nvidia-shim -prune -o -printf '%M %u:%g %p %l\\n' -type f -exec sha256sum {} + | sort")
}

// changed returns the lines that only one of two texts has.
func changed(before, after string) string {
	var lines []string
	for line := range strings.Lines(before) {
		if !strings.Contains(after, line) {
			lines = append(lines, "-"+line)
		}
	}
	for line := range strings.Lines(after) {
		if !strings.Contains(before, line) {
			lines = append(lines, "+"+line)
		}
	}
	return strings.Join(lines, "")
}

// besides are the files of the packages besides programs and configuration.
func besides(zsh string) []string {
	return []string{
		"/usr/lib/systemd/system/" + runtimeclass.UnitName + "\n", "/usr/lib/systemd/system/" + serveUnit + "\n",
		"/usr/share/man/man8/nvidia-shimctl.8.gz\n", "/usr/share/bash-completion/completions/nvidia-shimctl\n",
		"/usr/share/zsh/" + zsh + "/_nvidia-shimctl\n", "/usr/share/fish/vendor_completions.d/nvidia-shimctl.fish\n",
		"/usr/share/doc/containerd-shim-nvidia/grafana-dashboard.json\n", "/usr/share/doc/containerd-shim-nvidia/alert-rules.yaml\n", "/usr/share/doc/containerd-shim-nvidia/copyright\n",
	}
}

// exists reports whether the machine has the file.
func (m *machine) exists(t *testing.T, name string) bool {
	t.Helper()
	return m.try(t, nil, "test", "-e", name).ExitCode == 0
}

// bare removes the shim from the machine and adds Docker beside containerd. It returns the
// configuration that the shim needs here, and the content of /etc.
func (m *machine) bare(t *testing.T) (config, etc string) {
	t.Helper()
	config = m.run(t, "cat", inConfig)
	m.run(t, "sh", "-c", "rm -r /etc/nvidia-shim && mkdir /etc/docker && echo '{}' >"+runtimeclass.DefaultDockerConfig+" && touch /usr/local/bin/dockerd")
	return config, m.etc(t)
}

// configure writes the shim's configuration.
func (m *machine) configure(t *testing.T, config string) {
	t.Helper()
	if r := m.try(t, strings.NewReader(config), "sh", "-c", "cat >"+inConfig); r.ExitCode != 0 {
		t.Fatal(r.Error)
	}
}

// useShim registers the packaged shim and edits the configuration as an operator does, and runs a
// container with a GPU.
func (m *machine) useShim(t *testing.T, config string) {
	t.Helper()
	m.configure(t, config)
	m.run(t, "systemctl", "enable", runtimeclass.UnitName)
	m.run(t, packagedCtl, "install", "--target", "containerd", "--containerd", inBin+"/tools/containerd", "--restart")
	m.run(t, packagedCtl, "install", "--target", "docker")
	simhost.Want(t, m.run(t, "cat", runtimeclass.DefaultContainerdConfig), "runtimes.nvidia]")
	if m.exists(t, runtimeclass.DefaultBinDir+"/"+version.Shim) {
		t.Error("the packaged programs were copied")
	}
	c := m.sleep(t, 1, containerOptions{runtime: packagedShim})
	c.check(t)
	// The state directory is not below /run here.
	m.run(t, "sh", "-c", "mkdir -p /run/systemd/system/"+serveUnit+".d && printf '[Service]\\nReadWritePaths="+inDriver+"\\n' >/run/systemd/system/"+serveUnit+".d/state.conf && systemctl daemon-reload")
	m.run(t, "systemctl", "enable", "--now", serveUnit)
	simhost.Want(t, m.metrics(t), "nvidia_shim_device_holder{", "nvidia_shim_nvml_up 1", `nvidia_shim_creations_total{gpu="true"} 1`)
	c.remove(t)
}

// serveAddress is where serve listens.
const serveAddress = "127.0.0.1:3476"

// metrics waits for serve.
func (m *machine) metrics(t *testing.T) (metrics string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
		err = m.inNetwork(func() error { conn, err = net.Dial(network, address); return err })
		return conn, err
	}}}
	testenv.Await(t, "serve on "+serveAddress, func() bool {
		r, err := client.Get("http://" + serveAddress + "/metrics")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		metrics = string(text)
		return err == nil
	})
	return metrics
}

// servePID is the process of the unit of serve, "0" if it does not run.
func (m *machine) servePID(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(m.run(t, "systemctl", "show", "--property=MainPID", "--value", serveUnit))
}

// removed checks that nothing is registered or installed any more, and that the machine's
// configuration is as it was.
func (m *machine) removed(t *testing.T, before string) {
	t.Helper()
	if after := m.etc(t); after != before {
		t.Errorf("/etc is not as before: %s", changed(before, after))
	}
	if pid := m.servePID(t); pid != "0" {
		t.Errorf("serve still runs, as process %s", pid)
	}
	for _, name := range runtimeclass.Programs {
		if m.exists(t, "/usr/bin/"+name) {
			t.Errorf("%s is left", name)
		}
	}
	m.stateGone(t)
}

// A fresh machine needs two commands. The package stays while a container needs its shim.
func TestTwoCommandsInstallTheDeb(t *testing.T) {
	m := startMachine(t)
	deb := "/srv/" + filepath.Base(m.packageFile(t, "*_"+runtime.GOARCH+".deb"))
	config := m.run(t, "cat", inConfig) // it says where the simulated driver is
	m.run(t, "rm", "-r", filepath.Dir(inConfig))
	before := m.etc(t)
	m.run(t, "dpkg", "-i", deb)
	m.configure(t, config)
	m.run(t, "env", "PATH="+systemPath, "nvidia-shimctl", "install")
	simhost.Want(t, m.run(t, "cat", runtimeclass.DefaultContainerdConfig), "runtimes.nvidia]")
	registered := m.etc(t)
	c := m.sleep(t, 0, containerOptions{runtime: packagedShim})
	c.check(t)

	if r := m.try(t, nil, "dpkg", "-r", "containerd-shim-nvidia"); r.ExitCode == 0 || !strings.Contains(r.Output+r.Error, "remove them first") {
		t.Errorf("removed below a container: %+v", r)
	}
	if after := m.etc(t); after != registered {
		t.Errorf("a refused removal changed /etc: %s", changed(registered, after))
	}
	c.check(t)
	c.remove(t)
	m.run(t, "dpkg", "-r", "containerd-shim-nvidia")
	m.removed(t, before)
}

func TestTheDebIsInstalledUpgradedRemovedAndPurged(t *testing.T) {
	m := startMachine(t)
	deb := m.packageFile(t, "*_"+runtime.GOARCH+".deb")
	newer := "/srv/" + filepath.Base(newerDeb(t, deb))
	config, before := m.bare(t)

	simhost.Want(t, m.run(t, "dpkg", "-i", "/srv/"+filepath.Base(deb)), nextCommand)
	if after := m.etc(t); after != before {
		t.Errorf("installing registers something: %s", changed(before, after))
	}
	m.useShim(t, config)
	simhost.Want(t, m.run(t, "dpkg", "-L", "containerd-shim-nvidia"), besides("vendor-completions")...)
	registered, pid := m.etc(t), m.servePID(t)
	running := []*container{m.sleep(t, 1, containerOptions{runtime: packagedShim})}

	if out := m.run(t, "dpkg", "--force-confold", "-i", newer); strings.Contains(out, nextCommand) {
		t.Errorf("an upgrade asks for an installation: %s", out)
	}
	if after := m.etc(t); after != registered || m.run(t, "cat", inConfig) != config {
		t.Errorf("the upgrade changed the configuration: %s", changed(registered, after))
	}
	if now := m.servePID(t); now == pid || now == "0" {
		t.Errorf("after the upgrade serve is process %s, was %s", now, pid)
	}
	running = append(running, m.sleep(t, 2, containerOptions{runtime: packagedShim}))
	for _, c := range running {
		c.check(t)
	}
	m.run(t, "dpkg", "--force-confold", "-i", "/srv/"+filepath.Base(deb))
	for _, c := range running {
		c.check(t)
		c.remove(t)
	}

	m.run(t, "dpkg", "-r", "containerd-shim-nvidia")
	m.removed(t, before)
	if m.run(t, "cat", inConfig) != config {
		t.Error("removing changed the operator's configuration")
	}
	simhost.Want(t, m.run(t, "dpkg", "-i", "/srv/"+filepath.Base(deb)), nextCommand) // dpkg passes the removed version
	m.run(t, "dpkg", "-P", "containerd-shim-nvidia")
	if m.exists(t, filepath.Dir(inConfig)) {
		t.Errorf("purging left %s", m.run(t, "ls", "-l", filepath.Dir(inConfig)))
	}
}

func TestTheRPMIsInstalledUpgradedAndErased(t *testing.T) {
	m := startMachine(t)
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	file := "/srv/" + filepath.Base(m.packageFile(t, "*."+arch+".rpm"))
	// rpm does not know Debian's packages.
	rpm := func(args ...string) string { return m.run(t, append([]string{"rpm", "--nodeps"}, args...)...) }
	config, before := m.bare(t)

	simhost.Want(t, m.run(t, "rpm", "--checksig", file), "digests OK")
	simhost.Want(t, rpm("-i", file), nextCommand)
	if after := m.etc(t); after != before {
		t.Errorf("installing registers something: %s", changed(before, after))
	}
	m.run(t, "rpm", "--verify", "--nodeps", "containerd-shim-nvidia")
	simhost.Want(t, m.run(t, "rpm", "-ql", "containerd-shim-nvidia"), besides("site-functions")...)
	m.useShim(t, config)
	registered := m.etc(t)
	if out := rpm("-U", m.newerRPM(t)); strings.Contains(out, nextCommand) {
		t.Errorf("an upgrade asks for an installation: %s", out)
	}
	if after := m.etc(t); after != registered || m.run(t, "cat", inConfig) != config {
		t.Errorf("the upgrade changed the configuration: %s", changed(registered, after))
	}
	simhost.Want(t, m.run(t, "cat", inConfig+".rpmnew"), "# new default")
	simhost.Want(t, m.run(t, "rpm", "-q", "containerd-shim-nvidia"), "containerd-shim-nvidia-99.0-")
	c := m.sleep(t, 1, containerOptions{runtime: packagedShim})
	if r := m.try(t, nil, "rpm", "--nodeps", "-e", "containerd-shim-nvidia"); r.ExitCode == 0 || m.etc(t) != registered {
		t.Errorf("erased below a container: %+v", r)
	}
	c.check(t)
	c.remove(t)
	rpm("-e", "containerd-shim-nvidia")
	m.removed(t, before)
	if m.run(t, "cat", inConfig+".rpmsave") != config {
		t.Error("the operator's configuration is lost")
	}
}
