package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/driver"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/request"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/nvml"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// hostInfo is what `info` prints.
type hostInfo struct {
	DriverVersion string `json:"driver_version"`
	// CUDAVersion is the newest that the driver supports, as NVML says.
	CUDAVersion string `json:"cuda_version,omitempty"`
	// NVMLError says why what only NVML knows is missing, or is of some GPUs.
	NVMLError string              `json:"nvml_error,omitempty"`
	Platform  device.Platform     `json:"platform,omitempty"`
	Roots     map[string]string   `json:"roots"`
	GPUs      []gpuInfo           `json:"gpus"`
	Excluded  []gpuInfo           `json:"excluded"`
	MIG       []migInfo           `json:"mig"`
	Files     map[string][]string `json:"files"`
	Searched  []string            `json:"searched"`
	Missing   []string            `json:"missing"`
	Refused   []driver.Refused    `json:"refused"`
}

type gpuInfo struct {
	gpuinject.PlanGPU
	Model string `json:"model"`
	// NVML is what only it knows; absent where it does not answer.
	NVML *nvmlInfo `json:"nvml,omitempty"`
}

// nvmlInfo are a GPU's properties.
type nvmlInfo struct {
	Brand string                 `json:"brand"`
	Arch  string                 `json:"arch,omitempty"`
	MIG   bool                   `json:"mig"`
	MIGs  []device.InstanceFacts `json:"mig_devices"`
	Error string                 `json:"error,omitempty"`
	*nvml.Info
}

// migInfo is a MIG device by what procfs shows, with the name that needs no NVML.
type migInfo struct {
	GPU  int    `json:"gpu"`
	GI   int    `json:"gi"`
	CI   int    `json:"ci"`
	Name string `json:"name"`
}

func infoCommand() *cli.Command {
	return &cli.Command{
		Name:  "info",
		Usage: "show the driver, the GPUs and the driver files that containers can get",
		Action: func(_ context.Context, c *cli.Command) error {
			info, err := readInfo(c)
			if err != nil {
				return err
			}
			info.addNVML(c)
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
	inv, files, err := gpuinject.FindHost(h)
	if err != nil {
		return nil, err
	}
	instances, err := inv.Instances()
	if err != nil {
		return nil, err
	}
	info := &hostInfo{
		DriverVersion: inv.DriverVersion, Platform: inv.Platform,
		Roots: map[string]string{
			"driver": h.DriverRoot, "dev": h.DevRoot, "proc": h.ProcRoot, "sys": h.SysRoot, "state": h.StateDir,
		},
		GPUs: gpuInfos(inv.GPUs), Excluded: gpuInfos(inv.Excluded), MIG: migInfos(instances),
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
				info.Files[name] = append(info.Files[name], cmp.Or(d.Path, d.Dest+" (made, the host has none)"))
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
		out = append(out, gpuInfo{PlanGPU: gpuinject.NewPlanGPU(g), Model: g.Model})
	}
	return out
}

func migInfos(instances []device.Instance) []migInfo {
	out := []migInfo{}
	for _, in := range instances {
		out = append(out, migInfo{GPU: in.GPU, GI: in.GI, CI: in.CI, Name: in.Name()})
	}
	return out
}

func (i *hostInfo) print(w io.Writer) error {
	o := term.New(w)
	o.Line(o.Paint(term.Bold, driverLine(cmp.Or(i.DriverVersion, "of "+i.Platform.String()), i.CUDAVersion)))
	t := o.Table("INDEX", "MINOR", "UUID", "PCI", "MODEL")
	for _, g := range i.GPUs {
		t.Row(term.Textf("%d", g.Index), term.Textf("%d", g.Minor), term.Text(g.UUID), term.Text(g.PCI), term.Styled(term.Green, g.Model))
	}
	for _, g := range i.Excluded {
		t.Row(term.Styled(term.Yellow, "excluded"), term.Text("-"), term.Text(g.UUID), term.Text(g.PCI), term.Text(g.Model))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, m := range i.MIG {
		o.Field("MIG device:", len("MIG device:")+1, term.Green, fmt.Sprintf("%s, of GPU %d", m.Name, m.GPU))
	}
	i.printNVML(o)
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		o.Line(fmt.Sprintf("%s %d files", o.Paint(term.Bold, name+":"), len(i.Files[name])))
		for _, f := range i.Files[name] {
			o.Field("", 2, term.Plain, path.Clean(f))
		}
	}
	field := func(label string, s term.Style, value string) { o.Field(label, len(label)+1, s, value) }
	field("searched:", term.Plain, strings.Join(i.Searched, ", "))
	for _, m := range i.Missing {
		field("missing:", term.Yellow, m)
	}
	for _, r := range i.Refused {
		field("refused:", term.Red, r.Path+": it "+r.Reason)
	}
	return nil
}
