package driver

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

func TestASocketIsGivenOnlyWhereNobodyElseCanHavePutItThere(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change string // in run, where daemon/socket is a good one
		pipe   bool
		says   string // "" where it is given, "-" where nothing is there
	}{
		{name: "root's"},
		{name: "of a user of the daemon's own", change: "chown 1000 daemon daemon/socket"},
		{name: "of another user than its directory", change: "chown 1000 daemon/socket",
			says: "socket is not given to containers: it is owned by uid 1000"},
		{name: "in a directory that others can write to", change: "chmod 777 daemon", says: "is writable by users other than its owner"},
		{name: "below a directory of another user", change: "chown 1000 .",
			says: "run is not given to containers: it is owned by uid 1000"},
		{name: "below a directory that everybody can write to", change: "chmod 777 .",
			says: "run is not given to containers: it is writable by users other than root"},
		{name: "below a sticky one, of root", change: "chmod 1777 ."},
		{name: "below a sticky one, of a user", change: "chmod 1777 .; chown 1000 daemon",
			says: "uid 1000 in a world-writable directory"},
		{name: "whose directory is a link", change: "mv daemon real; ln -s real daemon", says: "is a symbolic link"},
		{name: "that is a link", change: "cd daemon; mv socket real; ln -s real socket", says: "is not a socket"},
		{name: "that is a file", change: "rm daemon/socket; touch daemon/socket", says: "is not a socket"},
		{name: "that is a FIFO", change: "rm daemon/socket; mkfifo daemon/socket", says: "is not a socket"},
		{name: "that is a FIFO, where that may be", change: "rm daemon/socket; mkfifo daemon/socket", pipe: true},
		{name: "that is not there", change: "rm daemon/socket", says: "-"},
		{name: "whose directory is not there", change: "rm -r daemon", says: "-"},
		{name: "whose directory is a file", change: "rm -r daemon; touch daemon", says: "not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := testtree.NewRoot(t)
			short, err := os.MkdirTemp("", "s") // for the socket's path
			r.Check(err)
			t.Cleanup(func() { os.RemoveAll(short) })
			r.Dir = short
			r.Check(os.Chmod(short, 0o755))
			r.Check(os.MkdirAll(short+"/run/daemon", 0o755))
			r.Link("var/run", "/run")
			l, err := net.Listen("unix", short+"/run/daemon/socket")
			r.Check(err)
			t.Cleanup(func() { l.Close() })
			change := exec.Command("sh", "-ec", tc.change)
			change.Dir = short + "/run"
			r.Check(change.Run())
			for _, dir := range []string{"/run/daemon", "/var/run/daemon"} {
				host, err := LocateSocket(short, dir, "socket", tc.pipe)
				switch {
				case tc.says == "" && (err != nil || host != filepath.Join(short, "run/daemon")):
					t.Errorf("%s: %s, %v", dir, host, err)
				case tc.says == "-" && !errors.Is(err, fs.ErrNotExist):
					t.Errorf("%s: %v", dir, err)
				case tc.says != "" && tc.says != "-":
					testtree.Says(t, err, tc.says)
				}
			}
		})
	}
}
