package driver

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestASocketIsGivenOnlyWhereNobodyElseCanHavePutItThere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the test changes owners: run it as root")
	}
	listen := func(t *testing.T, name string) {
		t.Helper()
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, run string) // run/daemon/socket is a good one
		pipe   bool
		says   string // "" where it is given, "-" where nothing is there
	}{
		{name: "root's", change: func(*testing.T, string) {}},
		{name: "of a user of the daemon's own", change: func(t *testing.T, run string) {
			must(t, errors.Join(os.Chown(run+"/daemon", 1000, 0), os.Chown(run+"/daemon/socket", 1000, 0)))
		}},
		{name: "of another user than its directory", change: func(t *testing.T, run string) { must(t, os.Chown(run+"/daemon/socket", 1000, 0)) }, says: "socket is not given to containers: it is owned by uid 1000"},
		{name: "in a directory that others can write to", change: func(t *testing.T, run string) { must(t, os.Chmod(run+"/daemon", 0o777)) }, says: "can be written by others"},
		{name: "below a directory of another user", change: func(t *testing.T, run string) { must(t, os.Chown(run, 1000, 0)) }, says: "run is not given to containers: it is owned by uid 1000"},
		{name: "below a directory that everybody can write to", change: func(t *testing.T, run string) { must(t, os.Chmod(run, 0o777)) }, says: "run is not given to containers: it can be written by others"},
		{name: "below a sticky one, of root", change: func(t *testing.T, run string) { must(t, os.Chmod(run, 0o777|os.ModeSticky)) }},
		{name: "below a sticky one, of a user", change: func(t *testing.T, run string) {
			must(t, errors.Join(os.Chmod(run, 0o777|os.ModeSticky), os.Chown(run+"/daemon", 1000, 0)))
		}, says: "uid 1000 in a directory that everybody can write to"},
		{name: "whose directory is a link", change: func(t *testing.T, run string) {
			must(t, errors.Join(os.Rename(run+"/daemon", run+"/real"), os.Symlink("real", run+"/daemon")))
		}, says: "is a symbolic link"},
		{name: "that is a link", change: func(t *testing.T, run string) {
			must(t, errors.Join(os.Rename(run+"/daemon/socket", run+"/daemon/real"), os.Symlink("real", run+"/daemon/socket")))
		}, says: "is not a socket"},
		{name: "that is a file", change: func(t *testing.T, run string) {
			must(t, errors.Join(os.Remove(run+"/daemon/socket"), os.WriteFile(run+"/daemon/socket", nil, 0o600)))
		}, says: "is not a socket"},
		{name: "that is a FIFO", change: func(t *testing.T, run string) {
			must(t, errors.Join(os.Remove(run+"/daemon/socket"), unix.Mkfifo(run+"/daemon/socket", 0o600)))
		}, says: "is not a socket"},
		{name: "that is a FIFO, where that may be", pipe: true, change: func(t *testing.T, run string) {
			must(t, errors.Join(os.Remove(run+"/daemon/socket"), unix.Mkfifo(run+"/daemon/socket", 0o600)))
		}},
		{name: "that is not there", change: func(t *testing.T, run string) { must(t, os.Remove(run+"/daemon/socket")) }, says: "-"},
		{name: "whose directory is not there", change: func(t *testing.T, run string) { must(t, os.RemoveAll(run+"/daemon")) }, says: "-"},
		{name: "whose directory is a file", change: func(t *testing.T, run string) {
			must(t, errors.Join(os.RemoveAll(run+"/daemon"), os.WriteFile(run+"/daemon", nil, 0o600)))
		}, says: "not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root, err := os.MkdirTemp("", "s") // short, for the socket's path
			must(t, err)
			t.Cleanup(func() { os.RemoveAll(root) })
			must(t, errors.Join(os.Chmod(root, 0o755), os.MkdirAll(root+"/run/daemon", 0o755), os.MkdirAll(root+"/var", 0o755), os.Symlink("/run", root+"/var/run")))
			listen(t, root+"/run/daemon/socket")
			tc.change(t, root+"/run")
			for _, dir := range []string{"/run/daemon", "/var/run/daemon"} {
				host, err := LocateSocket(root, dir, "socket", tc.pipe)
				switch {
				case tc.says == "" && (err != nil || host != filepath.Join(root, "run/daemon")):
					t.Errorf("%s: %s, %v", dir, host, err)
				case tc.says == "-" && !errors.Is(err, fs.ErrNotExist):
					t.Errorf("%s: %v", dir, err)
				case tc.says != "" && tc.says != "-" && (err == nil || !strings.Contains(err.Error(), tc.says)):
					t.Errorf("%s: %s, %v, want %q", dir, host, err, tc.says)
				}
			}
		})
	}
}
