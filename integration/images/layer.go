package images

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Layer is one layer of an image: a finished layer tar, a directory tree, or a list of
// files.
type Layer struct {
	// Tar is an uncompressed layer, used as it is.
	Tar string
	// Dir is a directory of this host. Owners, modes, devices, symbolic links and hard
	// links are kept, extended attributes are not.
	Dir string
	// Skip are tar patterns, relative to Dir, of files to leave out.
	Skip []string
	// Files are written in order.
	Files []File
}

// write writes the layer's tar: the same tree gives the same bytes.
func (l Layer) write(w io.Writer) error {
	if l.Tar != "" {
		f, err := os.Open(l.Tar)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}
	if l.Dir == "" {
		dir, err := os.MkdirTemp("", "layer")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		// The root of an image is for all users.
		if err := errors.Join(os.Chmod(dir, 0o755), Populate(dir, l.Files)); err != nil {
			return err
		}
		l.Dir = dir
	}
	args := []string{
		"--create", "--file=-", "--directory=" + l.Dir, "--sort=name", "--numeric-owner", "--mtime=@1700000000",
		"--format=pax", "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime", "--anchored",
	}
	for _, pattern := range l.Skip {
		args = append(args, "--exclude=./"+pattern)
	}
	return tar(nil, w, append(args, ".")...)
}

// unpackLayer unpacks a layer's tar.
func unpackLayer(r io.Reader, dir string) error {
	return tar(r, io.Discard, "--extract", "--file=-", "--directory="+dir, "--numeric-owner", "--preserve-permissions", "--same-owner")
}

// tar runs the host's GNU tar.
func tar(stdin io.Reader, stdout io.Writer, args ...string) error {
	cmd := exec.Command("tar", args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, stderr.String())
	}
	return nil
}
