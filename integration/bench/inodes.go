package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// usual is how long a file system takes to make an inode when it need not look for one,
// with a margin; the host is given patience to get there.
const (
	usual    = 60 * time.Microsecond
	patience = 6 * time.Minute
)

// awaitInodes waits until the file system of dir makes files as fast as usual. For a
// minute or more after many were deleted ext4 looks at each of those first and leaves it
// alone (recently_deleted in fs/ext4/ialloc.c). It returns a note where it gave up.
func awaitInodes(ctx context.Context, dir string) (note string, err error) {
	for end := time.Now().Add(patience); ; {
		took, err := inodeTime(dir)
		switch {
		case err != nil:
			return "", err
		case took <= usual:
			return "", nil
		case time.Now().After(end):
			return fmt.Sprintf("A file on the file system of the images took %s to make: each link and mount point in an image did, too.", took), nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(10 * time.Second):
		}
	}
}

// inodeTime is the median of some files and directories, made in a directory of their own.
func inodeTime(dir string) (time.Duration, error) {
	dir, err := os.MkdirTemp(dir, "inodes")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	var took []time.Duration
	for i := range 15 {
		began := time.Now()
		if err := os.Symlink("x", filepath.Join(dir, fmt.Sprint(i))); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
