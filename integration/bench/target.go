package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// prebuilt are the images that a run takes from -images.
var prebuilt = []string{"busybox", "usrlib64", "large"}

func prepare(dir string) error {
	os.Setenv("NVIDIA_SHIM_IMAGE_CACHE", dir)
	for _, name := range prebuilt {
		if _, err := images.Build(name); err != nil {
			return err
		}
	}
	return nil
}

// image is the tar of an image: built here, or the one in -images.
func (o options) image(name string) (string, error) {
	if o.imagesDir == "" {
		return images.Build(name)
	}
	tars, err := filepath.Glob(filepath.Join(o.imagesDir, name+"-*.tar"))
	if err != nil || len(tars) == 0 {
		return "", fmt.Errorf("%s has no image %s: make it with -prepare", o.imagesDir, name)
	}
	return tars[len(tars)-1], nil
}

// target is what the shims meet: GPUs with their driver, and images.
type target struct {
	setup
	tars []string
	// configPath is the shim's configuration, stateDir its state directory, driver the
	// version.
	configPath, stateDir, driver string
}

// realTarget has the NVIDIA driver of this host.
func (o options) realTarget(h *testenv.Lifetime, work string, r *Result) (*target, error) {
	state, path, version, err := realDriver(work)
	if err != nil {
		return nil, err
	}
	tar, err := hostImage(work)
	if err != nil {
		return nil, fmt.Errorf("assemble an image from this host's C library: %w", err)
	}
	gpus, err := filepath.Glob("/proc/driver/nvidia/gpus/*")
	if err != nil {
		return nil, err
	}
	s := setup{gpus: len(gpus), small: images.Ref("host"), middle: images.Ref("host")}
	s.peers, r.Notes = peers(h, s.middle)
	return &target{setup: s, tars: []string{tar}, stateDir: state, configPath: path, driver: version}, nil
}

// simulatedTarget has a simulated driver, whose first half of the GPUs is whole.
func (o options) simulatedTarget(h *testenv.Lifetime, work string) (*target, error) {
	var mig []sim.MIGDevice
	for i := range simulatedMIG {
		mig = append(mig, sim.MIGDevice{GPU: simulatedGPUs/2 + i/4, GI: 3 + i%4})
	}
	d := sim.New(h, sim.Options{Dir: filepath.Join(work, "driver"), GPUs: simulatedGPUs, MIG: mig})
	s := setup{gpus: len(d.GPUs), partitioned: simulatedGPUs / 2, mig: len(mig)}
	g := &target{setup: s, stateDir: d.StateDir, configPath: d.ConfigPath, driver: d.KernelVersion}
	for name, ref := range map[string]*string{"busybox": &g.small, "usrlib64": &g.middle} {
		tar, err := o.image(name)
		if err != nil {
			return nil, err
		}
		*ref = images.Ref(name)
		g.tars = append(g.tars, tar)
	}
	return g, nil
}

// simulatedGPUs is how many GPUs the simulated host has.
const simulatedGPUs = 8

// simulatedMIG is how many MIG devices half of them are partitioned into.
const simulatedMIG = 16
