package place

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/devnode"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/host/device"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/procmask"
)

// shown is a file below /proc/driver that the mask shows as the host has it.
type shown struct {
	name string
	// optional files need not be on the host.
	optional bool
	// line, if not empty, replaces the line with that name or is added.
	line string
}

// maskFiles returns the files of a mask that shows GPUs, by their bus ids, the rights of MIG, and
// what goes with other classes of devices.
func maskFiles(procRoot string, gpus []string, rights []device.Capability, classes []string) (list []procmask.File, err error) {
	// ModifyDeviceFiles lets NVIDIA's libraries make device nodes by themselves, and is 1 if it is
	// missing (nvidia-modprobe, init_device_file_parameters). A capability file has a parameter of
	// its own, DeviceFileModify.
	// guard: mask: ModifyDeviceFiles
	files := []shown{{name: "nvidia/version"}, {"nvidia/params", true, "ModifyDeviceFiles: 0"}}
	for _, bus := range gpus {
		dir := filepath.Join("nvidia/gpus", bus)
		files = append(files, shown{name: filepath.Join(dir, "information")}, shown{name: filepath.Join(dir, "power"), optional: true})
	}
	var minors []byte
	for _, right := range rights {
		files = append(files, shown{name: filepath.Join("nvidia/capabilities", right.File), line: "DeviceFileModify: 0"})
		// NVIDIA's device plugin looks them up in this table, where the names lack "mig/".
		minors = fmt.Appendf(minors, "%s %d\n", strings.Replace(right.File, "mig/", "", 1), right.Minor)
	}
	for _, name := range classes {
		class, _ := devnode.ByName(name)
		for _, file := range class.Mask {
			files = append(files, shown{name: file, optional: true})
		}
	}
	for _, f := range files {
		data, err := device.ReadFile(filepath.Join(procRoot, "driver", f.name))
		absent := f.optional && errors.Is(err, fs.ErrNotExist)
		if err != nil && !absent {
			return nil, err
		}
		if f.line != "" {
			data = setLine(data, f.line)
		} else if absent {
			continue
		}
		list = append(list, procmask.File{Path: f.name, Data: data})
	}
	if len(minors) > 0 {
		list = append(list, procmask.File{Path: "nvidia-caps/mig-minors", Data: minors})
	}
	return list, nil
}

// setLine returns text with the line "name: value" in place of the one with that name, or at its
// end.
func setLine(text []byte, line string) []byte {
	name, _, _ := strings.Cut(line, " ")
	var out []byte
	found := false
	for old := range bytes.Lines(bytes.TrimRight(text, "\n")) {
		old = bytes.TrimSuffix(old, []byte("\n"))
		if bytes.HasPrefix(old, []byte(name)) {
			old, found = []byte(line), true
		}
		out = append(append(out, old...), '\n')
	}
	if !found {
		out = append(out, line+"\n"...)
	}
	return out
}
