package main

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/simtest"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// The command and a node's pod check the file that Docker reads.
func TestDockersRuntimesAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	handler := func() (list []check.Finding) {
		c := cli.Command{Flags: []cli.Flag{&cli.StringFlag{Name: "config"}}, Action: func(ctx context.Context, c *cli.Command) error {
			k := nodeKeeper{c: c}
			for _, f := range k.check(ctx, runtimeclass.Options{Target: runtimeclass.Docker, ConfigFile: file}) {
				if f.Check == "handler" {
					list = append(list, f)
				}
			}
			return nil
		}}
		simtest.Check(t, c.Run(t.Context(), []string{"node"}))
		return list
	}
	args := []string{"check", "--target", "docker", "--docker-config", file}
	_, out, _ := ctl(t, args...)
	contains(t, out, "no runtime handler in "+file)
	if list := handler(); len(list) != 1 || list[0].Level != check.Problem {
		t.Errorf("%+v", list)
	}
	write(t, file, `{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}}}`)
	_, out, _ = ctl(t, args...)
	contains(t, out, `the handler "gpu" in `+file)
	if list := handler(); len(list) != 1 || list[0].Level != check.OK {
		t.Errorf("%+v", list)
	}
}
