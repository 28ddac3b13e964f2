package runtimeclass

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// Docker is the name of Docker, and DefaultDockerConfig dockerd's own default.
const (
	Docker              = "docker"
	DefaultDockerConfig = "/etc/docker/daemon.json"
)

// docker is a dockerd of the system. It runs containers with the host's containerd or one of its own.
type docker struct{}

func (docker) daemon() Daemon {
	return Daemon{
		Name: Docker, Title: "Docker", Process: "dockerd", Config: DefaultDockerConfig, Uses: Containerd, GPUsFlag: true,
		Signs:    append(inServicePath("dockerd"), DefaultDockerConfig),
		Programs: inServicePath("dockerd"), Version: "29.0.1",
		Units: []string{"docker"}, State: "/run/docker/containerd/daemon",
	}
}

func (docker) owns(containerd procfs.Process) bool {
	return strings.HasSuffix(path.Dir(ConfigFlag(containerd.Args)), "/docker/containerd")
}

func (docker) runtimes(h Host, file string) (map[string]Runtime, error) {
	_, config, err := h.readJSON(file)
	return dockerRuntimes(config), err
}

func (docker) files(p *Plan, o Options, _ string) ([]configFile, error) {
	file, _, _, err := p.readDocker(o.ConfigFile)
	return []configFile{file}, err
}

// checkDocker returns an error if this dockerd is not one for the shim, or does not know runtimes by
// their type.
func (p *Plan) checkDocker(o Options) error {
	if err := p.Host.RefuseDocker(o.ConfigFile); err != nil {
		return err
	}
	v := p.Host.Daemon
	if v.Known() && !v.AtLeast(24, 0, 0) {
		return fmt.Errorf("dockerd %s ignores runtimeType and would start containers without their GPUs: use Docker 24.0 or later", v)
	}
	if !v.Known() {
		p.note("dockerd's version is unknown (set it with --docker-version): Docker before 24.0 would start containers without their GPUs")
	}
	return nil
}

func (docker) register(p *Plan, o Options) (none edited, err error) {
	r := o.Registration
	if err := p.checkDocker(o); err != nil {
		return none, err
	}
	file, before, config, err := p.readDocker(o.ConfigFile)
	if err != nil {
		return none, err
	}
	if config["runtimes"] == nil {
		config["runtimes"] = map[string]any{}
	}
	runtimes, ok := config["runtimes"].(map[string]any)
	if !ok {
		var c struct {
			Runtimes map[string]any `json:"runtimes"`
		}
		return none, fmt.Errorf("%s: %w", file.name, jsonError(file.text, json.Unmarshal(file.text, &c)))
	}
	runtimeType := RuntimeType
	if !r.inPath() {
		runtimeType = r.shim()
	}
	p.note("Docker: runtimeType %q, without options: the shim derives the cgroup manager from the container's cgroup path", runtimeType)
	now := dockerRuntimes(before)
	if existing := runtimes[r.Handler]; existing != nil {
		if _, own := now[r.Handler]; !r.Replace && !own {
			return none, taken(r.Handler, file.name, existing, adviceReplace)
		}
		p.note("the runtime %q (%s) is replaced until uninstall; %s%s has it", r.Handler, describe(existing), file.name, hosttree.BackupSuffix)
	}
	ours := map[string]any{"runtimeType": runtimeType}
	runtimes[r.Handler] = ours
	for name := range now {
		if !dockerRuntime(runtimes, name).Ours() { // the others were registered by hand
			runtimes[name] = ours
		}
	}
	if err := p.offerCDI(o, file.name, before, config); err != nil {
		return none, err
	}
	if r.Default && p.Host.Default != "" {
		return none, fmt.Errorf("dockerd is started with --default-runtime %s, and does not start if %s has a default, too: remove the flag from its unit (systemctl cat docker), or leave out --set-default", p.Host.Default, file.name)
	}
	name, _ := before["default-runtime"].(string)
	if r.Default {
		config["default-runtime"] = r.Handler
	} else if now[name].Ours() && !o.DropDefault {
		config["default-runtime"] = name
	}
	if name != "" && config["default-runtime"] == nil {
		p.Restart.Verb = "restart" // a reload does not remove a default
	}
	f := edited{configFile: file, after: encodeJSON(config, "  "), handler: r.Handler}
	f.more, err = p.offerGPUs(o)
	return f, err
}

func (d docker) restart(_ Host, removed bool) Restart {
	r := Restart{Verb: "reload", Units: d.daemon().Units, stops: "containers stop, unless Docker has live-restore"}
	if removed { // a reload removes neither a runtime nor a default
		r.Verb = "restart"
	}
	return r
}

// byHand reads the default file and the one of the registration as they will be.
func (docker) byHand(p *Plan, o Options) (list []string) {
	files := []string{DefaultDockerConfig}
	if o.Target == Docker && o.ConfigFile != DefaultDockerConfig {
		files = append(files, o.ConfigFile)
	}
	for _, file := range files {
		text, _ := p.Host.Read(file) // a daemon whose file cannot be read starts nothing
		for _, c := range p.Changes {
			if c.Path == file {
				text = c.After
			}
		}
		config, _ := decodeJSON(text)
		list = append(list, named(file, dockerRuntimes(config))...)
	}
	return list
}

// Places of the daemons that this shim cannot serve: the snap's containerd finds no program outside
// the snap, and a rootless dockerd starts shims without the rights that this one needs.
const (
	snapDir        = "/var/snap/docker"
	rootlessSocket = "/run/user/*/docker.sock"
	rootlessConfig = "/.config/docker/"
)

// RefuseDocker returns an error if the host's Docker is a snap or rootless, and so does not read the
// configuration or cannot start the shim. A dockerd of the system beside it is served. config is ""
// if the daemon is not known yet.
func (h Host) RefuseDocker(config string) error {
	const instead = "install Docker as a service of the system (docs.docker.com/engine/install) and start it"
	sockets, err := h.Glob(rootlessSocket)
	if err != nil {
		return err
	}
	system := slices.ContainsFunc(inServicePath("dockerd"), h.Exists)
	serves := h.Exists("/run/docker.sock") || h.Exists("/var/run/docker.sock")
	switch {
	case strings.HasPrefix(config, snapDir+"/"), h.Exists(snapDir) && !system: // guard: installation: no snap
		return fmt.Errorf("this host's Docker is a snap (%s), which starts no program from outside: %s", snapDir, instead)
	case strings.Contains(config, rootlessConfig):
		return fmt.Errorf("%s is read by a rootless Docker, which cannot start this shim: %s", config, instead)
	// guard: installation: no rootless Docker
	case len(sockets) > 0 && !serves && (config == "" || config == DefaultDockerConfig):
		return fmt.Errorf("this host's Docker is rootless (%s) and cannot start this shim, and no other dockerd runs: %s", sockets[0], instead)
	}
	return nil
}

func dockerRuntimes(config map[string]any) map[string]Runtime {
	list := map[string]Runtime{}
	runtimes := tomledit.Table(config, "runtimes")
	for name := range runtimes {
		if r := dockerRuntime(runtimes, name); r.Ours() {
			list[name] = r
		}
	}
	return list
}

func dockerRuntime(runtimes map[string]any, name string) Runtime {
	runtimeType, _ := tomledit.Table(runtimes, name)["runtimeType"].(string)
	return Runtime{Type: runtimeType}
}

// offerCDI sets what this dockerd needs for a CDI specification, or refuses what it cannot do. By
// its sources, dockerd has CDI from 25.0 on, without features.cdi from 28.2 on, and resolves --gpus
// by CDI from 29.0 on: earlier ones look for NVIDIA's nvidia-container-runtime-hook only.
func (p *Plan) offerCDI(o Options, file string, now, config map[string]any) error {
	v, before := p.Host.Daemon, func(major, minor int) bool { return p.Host.Daemon.Known() && !p.Host.Daemon.AtLeast(major, minor, 0) }
	features, isTable := config["features"].(map[string]any)
	const instead = "use `--runtime` with NVIDIA_VISIBLE_DEVICES"
	switch {
	// guard: installation: what Docker can do
	case o.GPUsFlag && before(29, 0) && !slices.ContainsFunc(inServicePath(RuntimeHookName), p.Host.Exists):
		return fmt.Errorf("--gpus-flag: dockerd %s does not resolve --gpus by CDI: use Docker 29.0 or later, or leave the flag out and %s", v, instead)
	case len(o.CDI) == 0 && !p.madeCDI():
		return nil
	case before(25, 0):
		return fmt.Errorf("--cdi: dockerd %s has no CDI: use Docker 25.0 or later, or leave the flag out and %s", v, instead)
	case config["features"] != nil && !isTable:
		return fmt.Errorf("%s: features is not a JSON object", file)
	case features["cdi"] == false:
		return fmt.Errorf("--cdi: features.cdi is false in %s: remove it, or leave the flag out and %s", file, instead)
	case before(29, 0) && len(o.CDI) > 0:
		p.note("dockerd %s: `--device nvidia.com/gpu=0` works with the CDI file; `--gpus` needs Docker 29.0 or NVIDIA's toolkit", v)
	case !v.Known():
		p.note("Docker 25.0 to 28.1 also needs \"features\": {\"cdi\": true} in %s for the CDI file", file)
	}
	if !before(28, 2) || features["cdi"] == true {
		return nil
	}
	if features == nil {
		features = map[string]any{}
		config["features"] = features
	}
	features["cdi"] = true
	if tomledit.Table(now, "features")["cdi"] != true {
		p.Restart.Verb = "restart" // dockerd reads it when it starts
	}
	return nil
}

// madeCDI reports whether an installation for Docker wrote a CDI specification.
func (p *Plan) madeCDI() bool {
	return slices.ContainsFunc(p.installed, func(f placed) bool {
		return f.Kind == hosttree.Generated && slices.ContainsFunc(f.For, func(name string) bool { return strings.HasPrefix(name, Docker+" ") })
	})
}

// offerGPUs returns a link to nvidia-shimctl for dockerd, which offers --gpus if it finds a program
// with one of two names when it starts. If NVIDIA's own program is installed, no link is needed.
func (p *Plan) offerGPUs(o Options) (more []hosttree.Change, err error) {
	to := path.Join(o.Registration.BinDir, version.Ctl)
	if path.Dir(to) == path.Dir(cdiHookLink) {
		to = version.Ctl
	}
	link, err := p.Host.Change(hosttree.Link, cdiHookLink, []byte(to))
	now, program := path.Base(string(link.Before)), ""
	for _, name := range append(inServicePath(CDIHookName), inServicePath(RuntimeHookName)...) {
		c, _ := p.Host.Change(hosttree.Link, name, nil) // none if the directory is missing
		if base := path.Base(string(c.Before)); base != version.Ctl && base != "false" && p.Host.Exists(name) {
			program = cmp.Or(program, name)
		}
	}
	dangling := link.Before != nil && !p.Host.Exists(cdiHookLink)
	switch {
	case err != nil:
		return nil, err
	case o.GPUsFlag && (now == "false" || dangling && now != version.Ctl):
		return nil, fmt.Errorf("--gpus-flag: %s leads to %s: remove it first", cdiHookLink, link.Before)
	case o.GPUsFlag && program != "":
		p.note("--gpus-flag places no link: %s is there", program)
	case o.GPUsFlag:
		if more = append(more, link); link.Differs() {
			p.Restart.Verb = "restart" // dockerd looks for it when it starts
		}
	case now == "false":
		p.note("the link %s hides the program of NVIDIA's toolkit: remove it, then install with --gpus-flag, which steps aside", cdiHookLink)
	case len(o.CDI) > 0 && program == "" && link.Before == nil && (!p.Host.Daemon.Known() || p.Host.Daemon.AtLeast(29, 0, 0)):
		p.note("docker run --gpus also needs --gpus-flag, unless NVIDIA's toolkit is installed")
	}
	return more, nil
}

// noteCDIFiles adds a note for each CDI file that runs the link that an uninstallation removes.
func (p *Plan) noteCDIFiles() {
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		names, _ := p.Host.Glob(dir + "/*") // none if the directory is missing
		for _, name := range names {
			if text, _ := p.Host.Read(name); bytes.Contains(text, []byte(cdiHookLink)) {
				p.note("%s runs %s, which is removed: make it again with nvidia-ctk cdi generate", name, cdiHookLink)
			}
		}
	}
}

// readDocker reads daemon.json, as it is now and without the runtimes that install registered. The
// latter is the original if nothing else changed.
func (p *Plan) readDocker(name string) (file configFile, now, config map[string]any, err error) {
	if name, err = p.Host.Follow(name); err != nil {
		return file, nil, nil, err
	}
	text, now, err := p.Host.readJSON(name)
	if err != nil {
		return file, nil, nil, err
	}
	backup, original, err := p.Host.readJSON(name + hosttree.BackupSuffix)
	if err != nil {
		return file, nil, nil, err
	}
	file = configFile{name, text, text}
	config, _ = decodeJSON(text)            // it was decoded above
	if backup == nil && !p.recorded(name) { // an operator wrote the runtimes
		return file, now, config, nil
	}
	removed := removeOurs(config, original, p.madeCDI())
	switch {
	case backup != nil && reflect.DeepEqual(config, original):
		file.original = backup
	case removed:
		file.original = encodeJSON(config, "  ")
	}
	return file, now, config, nil
}

func (h Host) readJSON(name string) ([]byte, map[string]any, error) {
	text, err := h.Read(name)
	if err != nil {
		return nil, nil, err
	}
	config, err := decodeJSON(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, config, nil
}

// removeOurs removes our runtimes from a configuration, also as the default, and restores what the
// original has in their place. It reports whether there were any. JSON has no comments to mark an
// edit with, so the type identifies our runtimes. With cdi it removes features.cdi too.
func removeOurs(config, original map[string]any, cdi bool) bool {
	restore := func(m map[string]any, key string, value any) {
		delete(m, key)
		if value != nil {
			m[key] = value
		}
	}
	removed := false
	runtimes := tomledit.Table(config, "runtimes")
	for name, v := range runtimes {
		if !dockerRuntime(runtimes, name).Ours() {
			continue
		}
		if config["default-runtime"] == name && original["default-runtime"] != name {
			removed = true
			restore(config, "default-runtime", original["default-runtime"])
		}
		// A runtime that the operator registered by hand stays.
		if before := tomledit.Table(original, "runtimes")[name]; !reflect.DeepEqual(v, before) {
			removed = true
			restore(runtimes, name, before)
		}
	}
	if removed && len(runtimes) == 0 && original["runtimes"] == nil {
		delete(config, "runtimes")
	}
	features := tomledit.Table(config, "features")
	if cdi && features["cdi"] == true && tomledit.Table(original, "features")["cdi"] == nil {
		removed = true
		delete(features, "cdi")
		if len(features) == 0 && original["features"] == nil {
			delete(config, "features")
		}
	}
	return removed
}
