package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxTegraNodes bounds the nodes that one pattern of a Tegra's lists stands for.
const maxTegraNodes = 256

// NodesAt returns the nodes at paths below /dev, which the lists of a Tegra name
// ("/dev/nvmap", "/dev/nvhost-*"). A pattern's star stays in its directory, and what else
// it matches than character devices is passed over. What the machine has not got is left
// out, as the lists are for a family of machines.
//
// Nothing says what numbers such a node must have: that it is a character device, and
// no link, is all that can be verified.
func (inv *Inventory) NodesAt(paths []string) ([]Node, error) {
	var nodes []Node
	seen := map[string]bool{}
	for _, p := range paths {
		clean := path.Clean("/" + p)
		if !strings.HasPrefix(clean, "/dev/") {
			return nil, fmt.Errorf("device node %.256q is not below /dev", p)
		}
		found := []string{filepath.Join(inv.Roots.Dev, clean)}
		if strings.ContainsAny(clean, "*?[") {
			var err error
			if found, err = filepath.Glob(found[0]); err != nil {
				return nil, fmt.Errorf("device node %.256q: %w", p, err)
			}
			// "/dev/nvidia*" matches the directory nvidia-caps.
			found = slices.DeleteFunc(found, isAnotherFile)
			if len(found) > maxTegraNodes {
				return nil, fmt.Errorf("device node %.256q stands for %d nodes, more than %d", p, len(found), maxTegraNodes)
			}
		}
		for _, name := range found {
			if seen[name] {
				continue
			}
			seen[name] = true
			node, err := characterDevice(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			node.Path = strings.TrimPrefix(name, strings.TrimSuffix(inv.Roots.Dev, "/"))
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("none of the device nodes of this Tegra's lists exists below %s", filepath.Join(inv.Roots.Dev, "dev"))
	}
	return nodes, nil
}

// isAnotherFile tells what is there and no character device.
func isAnotherFile(name string) bool {
	var st unix.Stat_t
	return unix.Lstat(name, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFCHR
}

// characterDevice looks at a node without following it.
func characterDevice(name string) (Node, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return Node{}, fmt.Errorf("device node: %w", &fs.PathError{Op: "lstat", Path: name, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Node{}, fmt.Errorf("device node %s is %s, not a character device: take it from the lists below /etc/nvidia-container-runtime", name, fileType(st.Mode))
	}
	rdev := uint64(st.Rdev) //nolint:unconvert // 32 bits on some architectures
	return Node{
		HostPath: name, Major: unix.Major(rdev), Minor: unix.Minor(rdev),
		Mode: os.FileMode(st.Mode & 0o777), UID: st.Uid, GID: st.Gid,
	}, nil
}
