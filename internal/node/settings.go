package node

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/install"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/tomledit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/toolkit"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// DriverContainer is where GPU Operator mounts the root of its driver container.
const DriverContainer = "/run/nvidia/driver"

// fromNode begins a configuration that follows the node's command line. One without it was made by
// an `nvidia-shimctl install` on the node, whose settings stay.
const fromNode = "# These are the settings of nvidia-shimctl node.\n"

// CheckSettings returns an error with line or key unless text is a configuration of the shim.
func CheckSettings(text string) error {
	_, err := parse([]byte(text))
	return err
}

func parse(text []byte) (*config.Config, error) {
	c := config.Default()
	if err := config.Decode(text, c); err != nil {
		return nil, err
	}
	return c, c.Override(nil) // it checks the values
}

// configure adds the shim's configuration to the options: the settings of the command line, over
// those of NVIDIA's toolkit, with the root of a driver container if they name none. A file that the
// operator wrote is left alone, unless the command line has settings: then it must have the same.
func (k *Keeper) configure(in *install.Installer) error {
	now, err := in.Host.Read(in.ShimConfig)
	if err != nil {
		return err
	}
	have, err := tomledit.Decode(now)
	if err != nil {
		return fmt.Errorf("%s: %w", in.ShimConfig, err)
	}
	asked := k.Settings != "" || k.FromToolkit
	ours := now == nil || runtimeclass.Unchanged(now)
	follows := ours && bytes.Contains(now, []byte(fromNode))
	inContainer := ours && tomledit.Table(have, "host")["driver-root"] == DriverContainer
	if !asked && !ours && len(tomledit.WithoutEmpty(have)) > 0 {
		return nil
	}
	tables, header := map[string]any{}, fromNode
	carried, found, err := k.carryOver(in)
	switch {
	case err != nil:
		return err
	case found:
		tables = carried
	case k.FromToolkit && ours: // the toolkit is gone; what it had set stays
		tables = have
	case !asked && len(tomledit.WithoutEmpty(have)) > 0 && !follows:
		tables, header = have, ""
	}
	settings, err := tomledit.Decode([]byte(k.Settings))
	if err != nil {
		return err
	}
	tomledit.Merge(tables, settings)
	added, err := addDriverContainer(tables, inContainer)
	if err != nil || !asked && !follows && !added {
		return err
	}
	text, err := toml.Marshal(tables)
	in.WriteShimConfig, in.ShimSettings = true, ""
	if len(tomledit.WithoutEmpty(tables)) > 0 {
		in.ShimSettings = header + string(text)
	}
	return err
}

// carryOver returns the settings of NVIDIA's toolkit, if they are wanted and its file is there, and
// prints what became of its options if that was not printed last.
func (k *Keeper) carryOver(in *install.Installer) (settings map[string]any, found bool, _ error) {
	if !k.FromToolkit || !slices.ContainsFunc(toolkit.Paths, in.Host.Exists) {
		return nil, false, nil
	}
	report, err := toolkit.Read(in.Host.Root, toolkit.Paths, in.ShimConfig)
	if err != nil {
		return nil, false, err
	}
	var b strings.Builder
	if report.Print(term.New(&b)); b.String() != k.carried {
		k.carried = b.String()
		fmt.Fprint(in.Out, k.carried)
	}
	settings, err = tomledit.Decode([]byte(report.Text))
	return settings, true, err
}

// addDriverContainer sets host.driver-root if it is unset and the driver's files are in a driver
// container and not on the host, or in neither place and the container was used before: it may be
// about to start again.
func addDriverContainer(tables map[string]any, before bool) (added bool, _ error) {
	if tomledit.Table(tables, "host")["driver-root"] != nil {
		return false, nil
	}
	text, err := toml.Marshal(tables)
	if err != nil {
		return false, err
	}
	cfg, err := parse(text)
	if err != nil {
		return false, err
	}
	if hasDriver(cfg.Host, "/") || !before && !hasDriver(cfg.Host, DriverContainer) {
		return false, nil
	}
	tomledit.Merge(tables, map[string]any{"host": map[string]any{"driver-root": DriverContainer}})
	return true, nil
}

// hasDriver reports whether the loaded driver's libcuda or libnvidia-ml is below a root, which only
// root can replace and which is no link.
func hasDriver(h config.Host, root string) bool {
	var st unix.Stat_t
	// guard: installation: root's driver container
	if unix.Lstat(root, &st) != nil || trusted.RootDirectory(&st) != nil || trusted.Above(root) != nil {
		return false
	}
	h.DriverRoot, h.ReadOnlyState = root, true
	_, files, err := host.Find(h)
	return err == nil && slices.ContainsFunc(files.Libraries, func(l driver.Library) bool {
		stem, _, _ := driver.SplitName(l.Name)
		return stem == "libcuda" || stem == "libnvidia-ml"
	})
}
