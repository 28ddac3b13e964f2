package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// becomeCDIHook replaces this process with the program of NVIDIA's toolkit that the link of
// `install --gpus-flag` hides: CDI files of the toolkit may name the link. It returns only if that
// fails.
func becomeCDIHook(args, env []string) error {
	var self, st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &self); err != nil {
		return err
	}
	next := ""
	for _, dir := range filepath.SplitList(runtimeclass.ServicePath) { // a hook has no PATH
		name := filepath.Join(dir, runtimeclass.CDIHookName)
		var found unix.Stat_t
		switch {
		case unix.Stat(name, &found) != nil:
		case found.Dev == self.Dev && found.Ino == self.Ino:
			next = "" // two copies of this program must not execute each other
		case next == "":
			next, st = name, found
		}
	}
	if next == "" {
		return errors.New("NVIDIA's toolkit is not installed, and this is a link to nvidia-shimctl for Docker's --gpus: install the toolkit, or remove the CDI file with this hook and run nvidia-shimctl install --cdi")
	}
	if st.Uid == self.Uid {
		st.Uid = 0 // in a user namespace, root's files belong to the overflow user
	}
	if err := trusted.RootFile(&st); err != nil {
		return fmt.Errorf("%s %w", next, err)
	}
	return fmt.Errorf("%s: %w", next, unix.Exec(next, args, env))
}
