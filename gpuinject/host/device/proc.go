package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/rawio"
)

// maxFile bounds a file of procfs or sysfs, in bytes. The largest known have about 1 KiB.
const maxFile = 64 << 10

// ReadFile reads a file of procfs or sysfs.
func ReadFile(name string) ([]byte, error) {
	fd, err := rawio.Open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data, err := rawio.Read(fd, 512, maxFile+1)
	if err != nil {
		err = &os.PathError{Op: "read", Path: name, Err: err}
	}
	if err == nil && len(data) > maxFile { // guard: parsers: procfs
		err = fmt.Errorf("read %s: file too large", name)
	}
	return data, err
}

// numbered lists the numbers of the entries <prefix><number> of dir; none if there is no dir.
func numbered(dir, prefix string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), prefix)
		// The kernel's minor numbers have 20 bits, and it writes them without leading zeros.
		if n, err := strconv.ParseUint(digits, 10, 20); ok && err == nil && strconv.Itoa(int(n)) == digits {
			list = append(list, int(n))
		}
	}
	slices.Sort(list)
	return list, nil
}

// parseFields reads lines of "Key: value" with any blanks around both.
func parseFields(data []byte) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return fields
}

// numbers are the device numbers that the kernel lists by name: the majors of character devices in
// <proc>/devices, or the minors in <proc>/misc. A name can have several numbers, as ib_uverbs does.
type numbers map[string][]uint32

func readMajors(cfg config.Host) (numbers, error) {
	data, err := ReadFile(filepath.Join(cfg.ProcRoot, "devices"))
	if err != nil {
		return nil, fmt.Errorf("read device majors: %w", err)
	}
	return parseNumbers(data), nil
}

// parseNumbers reads the lines "195 nvidia" up to the header "Block devices:". <proc>/misc has no
// header.
func parseNumbers(data []byte) numbers {
	list := numbers{}
	characters, _, _ := strings.Cut(string(data), "Block devices:")
	for line := range strings.Lines(characters) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[0], 10, 20); err == nil { // minors have 20 bits
			list[fields[1]] = append(list[fields[1]], uint32(n))
		}
	}
	return list
}
