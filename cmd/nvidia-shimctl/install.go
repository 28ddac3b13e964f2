package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/state"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/view"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/cdispec"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

func installCommand() *cli.Command {
	return &cli.Command{
		Name:  "install",
		Usage: "install the programs and register the runtime handler",
		Flags: append(installFlags(), handlerFlag(),
			&cli.BoolFlag{Name: "set-default", Aliases: []string{"set-as-default"}, Usage: "make it the runtime of containers that name none, until --set-default=false"},
			replaceFlag(),
			&cli.StringFlag{Name: "containerd", Usage: "containerd's `PROGRAM`, asked for its version (default: found in PATH)"},
			&cli.StringFlag{Name: "containerd-version", Usage: "containerd's `VERSION`, such as 2.1.4, instead of asking it"},
			&cli.StringFlag{Name: "docker-version", Usage: "dockerd's `VERSION`, such as 29.0.1, instead of asking it"},
			&cli.StringFlag{Name: "arch", Usage: "`ARCH` of the tree, amd64 or arm64 (default: that of its /bin/sh)"},
			&cli.StringFlag{Name: "from", Usage: "`DIR` with the programs to install (default: this program's)"},
			&cli.BoolFlag{Name: "from-toolkit", Usage: "carry over the options of NVIDIA's container toolkit, from the configuration of its package or operator"},
			&cli.StringFlag{Name: "toolkit-config", Usage: "carry them over from this configuration `FILE`"},
			&cli.BoolFlag{Name: "prepare-unit", Usage: "have systemd run nvidia-shimctl prepare at boot"},
			&cli.BoolFlag{Name: "cdi", Usage: "write a CDI specification of the GPUs to " + cdispec.Path},
			&cli.BoolFlag{Name: "gpus-flag", Usage: "have Docker offer --gpus without NVIDIA's toolkit: link /usr/local/bin/" + runtimeclass.CDIHookName},
		),
		Action: install,
	}
}

var errGPUsFlag = usage(errors.New("--gpus-flag goes with --target docker only"))

func install(ctx context.Context, c *cli.Command) error {
	o, err := installOptions(c)
	if err == nil && o.Target != kind && !c.Bool("dry-run") && os.Geteuid() != 0 {
		err = errors.New("only root can install and uninstall: run it as root, or with --dry-run")
	}
	if err != nil {
		return err
	}
	if err := o.Registration.Validate(); err != nil {
		return usage(err)
	}
	if o.Target == kind && o.GPUsFlag {
		return errGPUsFlag
	}
	if o.Target == kind && c.Bool("json") {
		return usage(errors.New("--json does not go with --target kind: its configuration is YAML"))
	}
	if o.Target == kind {
		_, err = io.WriteString(c.Root().Writer, runtimeclass.KindCluster(o.Registration))
		return err
	}
	plan, report, err := planInstall(ctx, c, runtimeclass.Host{Root: c.String("root")}, &o)
	if err != nil {
		return err
	}
	if err := carryOut(c, plan, report); err != nil || c.Bool("dry-run") || !c.Bool("restart") {
		return err
	}
	var started error
	if o.PrepareUnit {
		started = runtimeclass.StartUnit(ctx, c.Root().ErrWriter)
	}
	// The daemon runs containers without a GPU too.
	if plan.Changed() {
		if err := plan.Restart.Run(ctx, c.Root().ErrWriter); err != nil {
			return err
		}
	}
	return started
}

// planInstall plans an installation for the host's daemon, with which it completes the options.
func planInstall(ctx context.Context, c *cli.Command, host runtimeclass.Host, o *runtimeclass.Options) (none runtimeclass.Plan, report *toolkit.Report, err error) {
	found, err := findTarget(c, host, o)
	if err != nil {
		return none, nil, err
	}
	if o.GPUsFlag && o.Target != runtimeclass.Docker {
		return none, nil, errGPUsFlag
	}
	if host.Daemon, err = daemonVersion(ctx, c, host, o.Target, found.Program); err != nil {
		return none, nil, err
	}
	if report, err = fromToolkit(c, o.ShimConfig); err != nil {
		return none, nil, err
	}
	if report != nil {
		o.WriteShimConfig, o.ShimSettings = true, report.Text
	}
	if o.Target != runtimeclass.Docker {
		o.KubeletSocket = runtimeclass.KubeletSocket(host, procOf(host))
	}
	if err := addCDI(c, o); err != nil {
		return none, nil, err
	}
	plan, err := runtimeclass.Install(host, *o)
	if found.Target != "" {
		plan.Notes = slices.Insert(plan.Notes, 0, "found "+found.String())
	}
	return plan, report, err
}

// findTarget chooses the only daemon of the host, or of the target that the command line names, and
// returns it.
func findTarget(c *cli.Command, host runtimeclass.Host, o *runtimeclass.Options) (none runtimeclass.Found, err error) {
	if c.IsSet("containerd") {
		return none, nil
	}
	named := c.IsSet("containerd-config") || c.IsSet("docker-config")
	target := c.String("target")
	if named {
		target = o.Target
	}
	found, all := runtimeclass.Find(host, procOf(host), target), runtimeclass.Find(host, procOf(host), "")
	if target != "" {
		err = refuseUnread(host, *o, named, found, all)
	}
	switch {
	case err != nil || named || target != "" && len(found) == 0: // the daemon may be installed later
		return none, err
	case len(found) == 1:
		o.Target = found[0].Target
		o.ConfigFile = cmp.Or(found[0].ConfigFile, configFile(c, o.Target))
		return found[0], nil
	case len(found) == 0:
		return none, usage(fmt.Errorf("no containerd, k3s, RKE2 or Docker below %s: name one with --target", host.Root))
	}
	return none, usage(fmt.Errorf("found %s: name one with --target, or its configuration file", foundNames(found)))
}

// refuseUnread returns an error if no daemon would read what is installed for a target, or into its
// named configuration: nothing but a file shows the target, and more shows another one.
func refuseUnread(host runtimeclass.Host, o runtimeclass.Options, named bool, found, all []runtimeclass.Found) error {
	files := []string{runtimeclass.DefaultContainerdConfig, runtimeclass.DefaultDockerConfig}
	reads := func(f runtimeclass.Found) bool {
		return f.ConfigFile == o.ConfigFile || f.ConfigFile == "" && slices.Contains(files, o.ConfigFile)
	}
	exists := host.Exists(o.ConfigFile)
	if named && !exists && len(all) > 0 && !slices.ContainsFunc(found, reads) {
		return usage(fmt.Errorf("%s does not exist, and no daemon here reads it: found %s", o.ConfigFile, foundNames(all)))
	}
	if named && exists && len(found) == 0 {
		files, found = append(files, o.ConfigFile), []runtimeclass.Found{{Why: o.ConfigFile}}
	}
	isFile := func(f runtimeclass.Found) bool { return slices.Contains(files, f.Why) }
	// An earlier installation may have made the other's file.
	weak := len(found) > 0 || host.Exists(runtimeclass.RecordPath)
	others := slices.DeleteFunc(all, func(f runtimeclass.Found) bool { return f.Target == o.Target || weak && isFile(f) })
	if len(others) == 0 || len(found) > 0 && !isFile(found[0]) {
		return nil
	}
	but := ""
	if len(found) > 0 {
		but = " but the file " + found[0].Why
	}
	return usage(fmt.Errorf("no %s here%s; found %s: name one with --target, or install or start %[1]s first", o.Target, but, foundNames(others)))
}

// procOf is the procfs of a host; "" for a tree.
func procOf(host runtimeclass.Host) procfs.FS {
	if filepath.Clean(host.Root) != "/" {
		return ""
	}
	return procfs.Host
}

func foundNames(found []runtimeclass.Found) string {
	var list []string
	for _, f := range found {
		list = append(list, f.String())
	}
	return strings.Join(list, " and ")
}

// daemonVersion is the version that the command line says, or that of program, if one runs. Nothing
// of a tree is executed.
func daemonVersion(ctx context.Context, c *cli.Command, host runtimeclass.Host, target, program string) (runtimeclass.Version, error) {
	flag, other := "containerd-version", "docker-version"
	if target == runtimeclass.Docker {
		flag, other = other, flag
	}
	if c.IsSet(other) {
		return runtimeclass.Version{}, usage(fmt.Errorf("--%s does not go with --target %s", other, target))
	}
	if version := c.String(flag); version != "" {
		v, err := runtimeclass.ParseVersion(version)
		if err != nil {
			return v, usage(fmt.Errorf("--%s: %w", flag, err))
		}
		return v, nil
	}
	if procOf(host) == "" {
		return runtimeclass.Version{}, nil
	}
	v, err := runtimeclass.DaemonVersion(ctx, target, cmp.Or(c.String("containerd"), program))
	if err != nil && !c.IsSet("containerd") {
		// Without the version the handler has the form that every one serves.
		return runtimeclass.Version{}, nil
	}
	return v, err
}

func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:  "uninstall",
		Usage: "bring the configuration back as it was, and remove the programs",
		Flags: append(installFlags(),
			&cli.BoolFlag{Name: "all", Usage: "undo the installation for every daemon"},
			&cli.BoolFlag{Name: "keep-programs", Usage: "leave the programs where they are"},
		),
		Action: uninstall,
	}
}

func uninstall(ctx context.Context, c *cli.Command) error {
	o, err := installOptions(c)
	if err == nil && o.Target != kind && !c.Bool("dry-run") && os.Geteuid() != 0 {
		err = errors.New("only root can install and uninstall: run it as root, or with --dry-run")
	}
	if err != nil {
		return err
	}
	o.KeepPrograms = c.Bool("keep-programs")
	if o.Target == kind {
		return usage(errors.New("a kind cluster is removed with its nodes: `kind delete cluster`"))
	}
	host := runtimeclass.Host{Root: c.String("root")}
	list, err := registered(c, host, o)
	for _, o := range list {
		if err == nil {
			err = uninstallFrom(ctx, c, host, o, false)
		}
	}
	return err
}

// uninstallFrom undoes an installation. pending: the daemon has not read its configuration since
// that changed.
func uninstallFrom(ctx context.Context, c *cli.Command, host runtimeclass.Host, o runtimeclass.Options, pending bool) error {
	plan, err := runtimeclass.Uninstall(host, o)
	if err != nil {
		return err
	}
	if plan.State, err = stateOf(c, host, o); err != nil {
		return err
	}
	if err := carryOut(c, plan, nil); err != nil || c.Bool("dry-run") {
		return err
	}
	if c.Bool("restart") && (plan.Changed() || pending) {
		err = plan.Restart.Run(ctx, c.Root().ErrWriter)
	}
	// Before the restart the daemon may start the shim.
	if err != nil && len(plan.Programs) > 0 {
		return fmt.Errorf("%w, and uninstall again to remove the programs", err)
	}
	if err != nil {
		return err
	}
	stay, err := plan.RemovePrograms(procfs.Host)
	for _, p := range stay {
		fmt.Fprintf(c.Root().ErrWriter, "%s stays, because containers run with it: run uninstall again when they are gone\n", p)
	}
	if err == nil && len(stay) == 0 && plan.State != "" {
		err = removeState(plan.State)
	}
	return err
}

// stateOf returns the state directory of this host if there is one and no other registration is
// left that needs it.
func stateOf(c *cli.Command, host runtimeclass.Host, o runtimeclass.Options) (string, error) {
	list, err := runtimeclass.Registered(host, o)
	if n := len(list); err != nil || host.Root != "/" || n > 1 && !(c.Bool("all") && list[n-1].ConfigFile == o.ConfigFile) {
		return "", err
	}
	cfg, err := config.Find("")
	if err != nil {
		fmt.Fprintf(c.Root().ErrWriter, "the state directory stays: %v\n", err)
		return "", nil
	}
	if _, err := os.Lstat(cfg.Host.StateDir); err != nil {
		return "", nil
	}
	return cfg.Host.StateDir, nil
}

// removeState takes the views off this host and removes its state directory.
func removeState(dir string) error {
	s, err := state.Open(dir, true)
	if err == nil {
		err = view.Remove(s)
	}
	if err == nil {
		err = s.Remove()
	}
	return err
}

// registered chooses the registrations to remove.
func registered(c *cli.Command, host runtimeclass.Host, o runtimeclass.Options) ([]runtimeclass.Options, error) {
	list, err := runtimeclass.Registered(host, o)
	file := c.IsSet("containerd-config") || c.IsSet("docker-config")
	list = slices.DeleteFunc(list, func(r runtimeclass.Options) bool {
		return (file || c.IsSet("target")) && r.Target != o.Target || file && r.ConfigFile != o.ConfigFile
	})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return []runtimeclass.Options{o}, nil
	}
	if len(list) == 1 || c.Bool("all") {
		return list, nil
	}
	var names []string
	for _, r := range list {
		names = append(names, strings.TrimSpace(r.Target+" "+r.ConfigFile))
	}
	return nil, usage(fmt.Errorf("installed for %s: name one with --target, or --all", strings.Join(names, " and for ")))
}
