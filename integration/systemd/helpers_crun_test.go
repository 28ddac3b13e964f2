package systemd

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed programs/nolimit.c
var nolimit string

// crunScript starts Debian's crun, 1.8.1, which containerd 2.4 and some hosts ask
// too much of. It refuses the version of the specification that containerd writes
// (crun before 1.14.3 wants "1.0" to be in it, Podman issue 27272); that of
// containerd 1.7, whose content is the same as far as crun reads it, it takes. What
// is preloaded is explained in programs/nolimit.c.
const crunScript = `#!/bin/sh
for arg; do
	if [ "$previous" = --bundle ]; then
		sed -i 's/"ociVersion": *"[^"]*"/"ociVersion":"1.1.0"/' "$arg/config.json"
	fi
	previous=$arg
done
export LD_PRELOAD=%[1]s/nolimit.so XDG_RUNTIME_DIR=%[1]s
exec %[2]s "$@"
`

// writeCrun makes a directory with crun and the options file crun.toml that names
// it. inside is the name of the directory, and program that of Debian's crun, where
// they will be used.
func writeCrun(t testing.TB, dir, inside, program string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"nolimit.c": nolimit,
		"crun":      fmt.Sprintf(crunScript, inside, program),
		"crun.toml": fmt.Sprintf("BinaryName = %q\n", inside+"/crun"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-Wall", "-o", filepath.Join(dir, "nolimit.so"), filepath.Join(dir, "nolimit.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}
