package main

import (
	"path/filepath"
	"testing"
)

func TestDockersRuntimesAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	args := []string{"check", "--target", "docker", "--docker-config", file}
	_, out, _ := ctl(t, args...)
	contains(t, out, "no runtime handler in "+file)
	write(t, file, `{"runtimes": {"gpu": {"runtimeType": "io.containerd.nvidia.v2"}}}`)
	_, out, _ = ctl(t, args...)
	contains(t, out, `the handler "gpu" in `+file)
}
