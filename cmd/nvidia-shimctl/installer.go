package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hosttree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// targets returns the names of the daemons, or only those of daemons of a host.
func targets(ofHost bool) string {
	var names []string
	for _, d := range runtimeclass.Daemons() {
		if d.Print == nil || !ofHost {
			names = append(names, d.Name)
		}
	}
	return strings.Join(names, ", ")
}

// configurable returns the daemons whose configuration and version can be named: those with the flags
// --NAME-config and --NAME-version.
func configurable() []runtimeclass.Daemon {
	return slices.DeleteFunc(runtimeclass.Daemons(), func(d runtimeclass.Daemon) bool { return !d.HasConfig() })
}

// daemonFlags returns the flags that say for which daemon to install, and where.
func daemonFlags() []cli.Flag {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "target", Aliases: []string{"runtime"}, Usage: "`WHAT` to register with: " + targets(false) + " (default: what is there)"},
	}
	for _, d := range configurable() {
		flags = append(flags, &cli.StringFlag{Name: d.Name + "-config", Value: d.Config, Usage: d.Title + "'s configuration `FILE`"})
	}
	return append(flags, &cli.StringFlag{Name: "bin-dir", Value: runtimeclass.DefaultBinDir, Usage: "`DIR` of the installed programs; keep it, bundles record it"})
}

// registrationFlags say how to register.
func registrationFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "handler", Value: runtimeclass.DefaultHandler, Usage: "`NAME` of the runtime handler"},
		&cli.BoolFlag{Name: "set-default", Aliases: []string{"set-as-default"}, Usage: "make it the runtime of containers that name none, until --set-default=false"},
		&cli.BoolFlag{Name: "replace", Usage: "override another runtime of that name; uninstall restores it"},
	}
}

func fromToolkitFlag() cli.Flag {
	return &cli.BoolFlag{Name: "from-toolkit", Usage: "carry over the options of NVIDIA's container toolkit, from the configuration of its package or operator"}
}

func installFlags() []cli.Flag {
	return append(daemonFlags(),
		&cli.StringFlag{Name: "root", Value: "/", Usage: "prepare the tree below `DIR` instead of this host"},
		&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, and change nothing"},
		&cli.BoolFlag{Name: "restart", Usage: "restart the daemon afterwards; without it nothing is restarted"},
	)
}

// installer returns the installer for the flags. Flags of install that node and uninstall lack are
// empty.
func installer(c *cli.Command) (i install.Installer, err error) {
	options, err := installOptions(c)
	if err != nil {
		return i, err
	}
	i = install.Installer{
		Host: runtimeclass.Host{Tree: hosttree.Tree{Root: cmp.Or(c.String("root"), "/")}}, Options: options,
		TargetNamed: c.String("target") != "",
		Configs:     map[string]string{}, Containerd: c.String("containerd"), Versions: map[string]string{},
		DryRun: c.Bool("dry-run"), Restart: c.Bool("restart"), All: c.Bool("all"),
		Out: c.Root().Writer, Err: c.Root().ErrWriter, JSON: c.Bool("json"),
	}
	for _, d := range configurable() {
		i.Configs[d.Name], i.Versions[d.Name] = c.String(d.Name+"-config"), c.String(d.Name+"-version")
		i.ConfigNamed = i.ConfigNamed || c.IsSet(d.Name+"-config")
	}
	if c.Bool("from-toolkit") {
		i.Toolkit = toolkit.Paths
	}
	if file := c.String("toolkit-config"); file != "" {
		i.Toolkit = []string{file}
	}
	if c.Bool("cdi") {
		i.CDIFile, i.MakeCDI = cdiFile, func() ([]byte, error) { return cdispec.Text(planner(c)) }
	}
	return i, checkInstaller(c, i)
}

// checkInstaller returns an error if flags are invalid or cannot be combined.
func checkInstaller(c *cli.Command, i install.Installer) error {
	for _, d := range configurable() {
		flag := d.Name + "-config"
		if d.Name != i.Target && c.IsSet(flag) {
			return usage(fmt.Errorf("--%s goes with --target %s only", flag, d.Name))
		}
		if !filepath.IsAbs(i.Configs[d.Name]) {
			return usage(fmt.Errorf("--%s %q is not an absolute path", flag, i.Configs[d.Name]))
		}
	}
	target := runtimeclass.DaemonOf(i.Target)
	st, err := os.Stat(i.Host.Root)
	thisHost := filepath.Clean(i.Host.Root) == "/"
	switch file := c.String("toolkit-config"); {
	case !target.IsContainerd && i.Containerd != "":
		return usage(fmt.Errorf("--containerd cannot be combined with --target %s", target.Name))
	case !filepath.IsAbs(i.Host.Root) || err != nil || !st.IsDir():
		return usage(fmt.Errorf("--root %q is not the absolute path of a directory", i.Host.Root))
	case i.Arch != "" && i.Arch != "amd64" && i.Arch != "arm64":
		return usage(fmt.Errorf("--arch %q is not amd64 or arm64", i.Arch))
	case i.Containerd != "" && !thisHost:
		return usage(errors.New("--containerd works on this host only: with --root use --containerd-version"))
	case i.Restart && !thisHost:
		return usage(errors.New("--restart cannot be combined with --root"))
	case i.CDIFile != "" && !thisHost:
		return usage(errors.New("--cdi cannot be combined with --root"))
	case file != "" && !filepath.IsAbs(file):
		return usage(fmt.Errorf("--toolkit-config %q is not an absolute path", file))
	case target.Print == nil && !i.DryRun && os.Geteuid() != 0:
		return errors.New("only root can install and uninstall: run it as root, or with --dry-run")
	}
	return nil
}

func installOptions(c *cli.Command) (runtimeclass.Options, error) {
	o := runtimeclass.Options{
		Target: c.String("target"), HandlerNamed: c.IsSet("handler"), Programs: c.String("from"),
		DropDefault: c.IsSet("set-default") && !c.Bool("set-default"), KeepPrograms: c.Bool("keep-programs"),
		PrepareUnit: c.Bool("prepare-unit"), GPUsFlag: c.Bool("gpus-flag"), Arch: c.String("arch"), ShimConfig: config.DefaultPath,
		Registration: runtimeclass.Registration{
			Handler: c.String("handler"), BinDir: filepath.Clean(c.String("bin-dir")),
			Default: c.Bool("set-default"), Replace: c.Bool("replace"),
		},
	}
	for _, d := range slices.Backward(configurable()) {
		if c.IsSet(d.Name + "-config") {
			o.Target = cmp.Or(o.Target, d.Name)
		}
	}
	o.Target = cmp.Or(o.Target, runtimeclass.Containerd)
	switch d := runtimeclass.DaemonOf(o.Target); {
	case d.Name == "":
		return o, usage(fmt.Errorf("--target %q is not one of %s", o.Target, targets(false)))
	case d.HasConfig(): // others have several
		o.ConfigFile = c.String(o.Target + "-config")
	}
	if name := c.String("config"); filepath.IsAbs(name) {
		o.ShimConfig = name
	}
	if o.Programs == "" {
		self, err := os.Executable()
		if err != nil {
			return o, err
		}
		o.Programs = filepath.Dir(self)
	}
	if o.Programs == runtimeclass.PackageBinDir && !c.IsSet("bin-dir") && filepath.Clean(cmp.Or(c.String("root"), "/")) == "/" {
		o.Registration.BinDir = o.Programs
	}
	return o, nil
}
