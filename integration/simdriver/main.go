package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("simdriver", flag.ContinueOnError)
	o := sim.Options{Layout: sim.Debian}
	flags.StringVar(&o.Dir, "dir", "", "`directory` to make; needed")
	flags.IntVar(&o.GPUs, "gpus", 1, "how many GPUs, 1 to 16")
	flags.Func("layout", "debian (default), rhel, gke, nvidia-current, talos or nixos", func(s string) error {
		o.Layout = sim.Layout(s)
		return nil
	})
	flags.StringVar(&o.Version, "version", sim.DefaultVersion, "driver version")
	flags.StringVar(&o.KernelVersion, "kernel-version", "", "version of the loaded module (default: the driver version)")
	flags.Func("mig", "MIG device `gpu:gi:ci`, may be repeated", func(s string) error {
		m, err := parseMIG(s)
		o.MIG = append(o.MIG, m)
		return err
	})
	others := flags.Bool("others", false, "with devices of every other kind: IMEX, GDS, MOFED, GDRCopy, NVSwitch")
	tegra := flags.Bool("tegra", false, "a Tegra: with csv lists in place of procfs")
	remove := flags.Bool("remove", false, "remove the simulated driver in -dir")
	upgrade := flags.String("upgrade", "", "install another driver `version` in -dir")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.Dir == "" {
		return errors.New("simdriver: -dir is needed, and there are no arguments: see simdriver -help")
	}
	if *remove || *upgrade != "" {
		d, err := sim.Open(o.Dir)
		if err != nil {
			return err
		}
		if *remove {
			return d.Remove()
		}
		return d.Upgrade(*upgrade)
	}
	if *others {
		o.Others = sim.Others{IMEX: 3, GDS: true, MOFED: true, GDRCopy: true, NVSwitch: true}
	}
	d, err := sim.Create(ctx, o)
	if err == nil && *tegra {
		err = d.BecomeTegra(ctx)
	}
	if err != nil {
		return err
	}
	config, err := os.ReadFile(d.ConfigPath)
	if err != nil {
		return err
	}
	_, err = out.Write(config)
	return err
}

// parseMIG reads <GPU index>:<GPU instance>:<compute instance>.
func parseMIG(s string) (sim.MIGDevice, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return sim.MIGDevice{}, fmt.Errorf("%q is not <GPU>:<GPU instance>:<compute instance>", s)
	}
	var n [3]int
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(p); err != nil {
			return sim.MIGDevice{}, fmt.Errorf("%q is not a number", p)
		}
	}
	return sim.MIGDevice{GPU: n[0], GI: n[1], CI: n[2]}, nil
}
