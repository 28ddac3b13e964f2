package driver

import (
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Locate returns the host path of one more file or directory, as wanted, below root.
// Links are followed inside the root, and what is there must be fit for a container
// like any file of the driver. An error that is fs.ErrNotExist says that nothing is there.
func Locate(root, name string, directory bool) (host string, err error) {
	t, err := openTree(root)
	if err != nil {
		return "", err
	}
	defer t.close()
	fd, st, err := t.open(name)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: t.host(name), Err: err}
	}
	defer unix.Close(fd)
	reason := unsafeFile(&st)
	if directory {
		reason = unsafeDir(&st)
	}
	if reason != "" {
		return "", fmt.Errorf("%s is not given to containers: it %s", t.host(name), reason)
	}
	host, _, err = t.name(fd)
	return host, err
}

// CheckProgram refuses a program of the driver root that is not root's alone to change.
// It is for what an administrator's command executes there.
func CheckProgram(root, name string) error {
	t, err := openTree(root)
	if err != nil {
		return err
	}
	defer t.close()
	fd, st, err := t.open(name)
	if err != nil {
		return &fs.PathError{Op: "open", Path: t.host(name), Err: err}
	}
	defer unix.Close(fd)
	reason := unsafeFile(&st)
	if reason == "" && st.Mode&0o020 != 0 {
		reason = "can be written by a group"
	}
	if reason != "" {
		return fmt.Errorf("%s is not executed: it %s", t.host(name), reason)
	}
	return nil
}
