package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// The rest is tested in a machine with systemd, as a container with the node's image.
func TestNodeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no time between rounds": {[]string{"--interval", "0s"}, "--interval has to be positive"},
		"a root that is none":    {[]string{"--host-root", "/does/not/exist"}, "--host-root: "},
		"a target that is none":  {[]string{"--target", "kind"}, "runs containerd"},
		"an argument":            {[]string{"now"}, `unexpected argument "now"`},
	} {
		status, _, errs := ctl(t, append([]string{"node"}, c.args...)...)
		if status != 2 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d, %s", name, status, errs)
		}
	}
}

// Listening on a socket changes the umask of the process for a moment, so it comes before the first
// file is created.
func TestNodeListensFirst(t *testing.T) {
	app := newApp(io.Discard, io.Discard)
	i := slices.IndexFunc(app.Commands, func(c *cli.Command) bool { return c.Name == "node" })
	app.Commands[i].Action = func(ctx context.Context, c *cli.Command) error {
		_, err := serveNode(ctx, c, http.NotFoundHandler())
		return err
	}
	socket := filepath.Join(t.TempDir(), "missing", "socket")
	err := app.Run(t.Context(), []string{"nvidia-shimctl", "node", "--listen", "unix:" + socket, "--ready-port", "0"})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v: nothing listened before serve returned", err)
	}
}
