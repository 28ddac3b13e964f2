package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
)

// hostInfo is what `info` prints.
type hostInfo struct {
	DriverVersion string              `json:"driver_version"`
	Roots         map[string]string   `json:"roots"`
	GPUs          []gpuInfo           `json:"gpus"`
	Excluded      []gpuInfo           `json:"excluded"`
	Files         map[string][]string `json:"files"`
	Searched      []string            `json:"searched"`
	Missing       []string            `json:"missing"`
	Refused       []driver.Refused    `json:"refused"`
}

type gpuInfo struct {
	Index int    `json:"index"`
	Minor int    `json:"minor"`
	UUID  string `json:"uuid"`
	PCI   string `json:"pci"`
	Model string `json:"model"`
}

func infoCommand() *cli.Command {
	return &cli.Command{
		Name:                      "info",
		OnUsageError:              onUsageError,
		DisableSliceFlagSeparator: true,
		Usage:                     "show the driver, the GPUs and the driver files that containers can get",
		Action: func(_ context.Context, c *cli.Command) error {
			info, err := readInfo(c)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c.Root().Writer, info)
			}
			return info.print(c.Root().Writer)
		},
	}
}

func readInfo(c *cli.Command) (*hostInfo, error) {
	cfg, err := loader(c)()
	if err != nil {
		return nil, err
	}
	h := cfg.Host
	inv, err := device.Discover(device.Roots{Proc: h.ProcRoot, Dev: h.DevRoot, Sys: h.SysRoot})
	if err != nil {
		return nil, err
	}
	files, err := driver.Discover(h, inv.DriverVersion)
	if err != nil {
		return nil, err
	}
	info := &hostInfo{
		DriverVersion: inv.DriverVersion,
		Roots: map[string]string{
			"driver": h.DriverRoot, "dev": h.DevRoot, "proc": h.ProcRoot, "sys": h.SysRoot, "state": h.StateDir,
		},
		GPUs: gpuInfos(inv.GPUs), Excluded: gpuInfos(inv.Excluded),
		Files: map[string][]string{}, Searched: files.Searched, Missing: files.Missing, Refused: files.Refused,
	}
	for _, name := range []string{request.Compute, request.Utility, request.Graphics, request.Video, request.Display, request.NGX} {
		for _, l := range files.Libraries {
			if slices.Contains(l.Capabilities, name) && l.Bits == 64 {
				info.Files[name] = append(info.Files[name], l.Path)
			}
		}
		for _, b := range files.Binaries {
			if slices.Contains(b.Capabilities, name) {
				info.Files[name] = append(info.Files[name], b.Path)
			}
		}
		for _, d := range files.Data {
			if slices.Contains(d.Capabilities, name) {
				info.Files[name] = append(info.Files[name], d.Path)
			}
		}
	}
	for _, l := range files.Libraries {
		if l.Bits == 32 {
			info.Files[request.Compat32] = append(info.Files[request.Compat32], l.Path)
		}
	}
	return info, nil
}

func gpuInfos(gpus []device.GPU) []gpuInfo {
	out := []gpuInfo{}
	for _, g := range gpus {
		out = append(out, gpuInfo{Index: g.Index, Minor: g.Minor, UUID: g.UUID, PCI: g.BusID, Model: g.Model})
	}
	return out
}

func (i *hostInfo) print(w io.Writer) error {
	fmt.Fprintf(w, "Driver %s\n", i.DriverVersion)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "INDEX\tMINOR\tUUID\tPCI\tMODEL")
	for _, g := range i.GPUs {
		fmt.Fprintf(tw, "%d\t%d\t%s\t%s\t%s\n", g.Index, g.Minor, g.UUID, g.PCI, g.Model)
	}
	for _, g := range i.Excluded {
		fmt.Fprintf(tw, "excluded\t-\t%s\t%s\t%s\n", g.UUID, g.PCI, g.Model)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	names := make([]string, 0, len(i.Files))
	for name := range i.Files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(w, "%s: %d files\n", name, len(i.Files[name]))
		for _, f := range i.Files[name] {
			fmt.Fprintf(w, "  %s\n", path.Clean(f))
		}
	}
	fmt.Fprintf(w, "searched: %s\n", strings.Join(i.Searched, ", "))
	for _, m := range i.Missing {
		fmt.Fprintf(w, "missing: %s\n", m)
	}
	for _, r := range i.Refused {
		fmt.Fprintf(w, "refused: %s: it %s\n", r.Path, r.Reason)
	}
	return nil
}
