package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Process is one that uses a GPU, as NVML lists it.
type Process struct {
	// UUID is that of the GPU or MIG device.
	UUID string
	PID  int
	// Memory is what it has allocated there, in bytes.
	Memory uint64
	// Graphics: it draws; otherwise it computes.
	Graphics bool
}

// Place makes NVML list these processes from now on, and no others.
func (d *Driver) Place(list ...Process) error {
	var b strings.Builder
	for _, p := range list {
		kind := "C"
		if p.Graphics {
			kind = "G"
		}
		fmt.Fprintf(&b, "%s %d %d %s\n", p.UUID, p.PID, p.Memory, kind)
	}
	return d.steer("processes", b.String())
}

// Hang lets nvmlInit never come back, as it does where the driver is wedged; with
// false it works again.
func (d *Driver) Hang(on bool) error {
	if !on {
		return os.RemoveAll(d.steering("hang"))
	}
	return d.steer("hang", "")
}

// Unsupport lets functions of NVML, such as "nvmlDeviceGetBrand", say that the GPU has
// not got the property; with none every GPU has them all again.
func (d *Driver) Unsupport(functions ...string) error {
	return d.steer("unsupported", strings.Join(functions, "\n")+"\n")
}

// Modprobe lets nvmlInit execute program and make the file <program>.node, which is
// what the real one does by nvidia-modprobe where a device node is missing.
func (d *Driver) Modprobe(program string) error { return d.steer("modprobe", program+"\n") }

// Checkpoint is what a function of libcuda that suspends processes does: "Lock",
// "Checkpoint", "Restore" or "Unlock".
type Checkpoint struct {
	Function string
	// PID is the process that is suspended; 0 is every process.
	PID int
	// Result is the CUresult, or Wait.
	Result int
}

// Wait lets a function wait until it is steered otherwise.
const Wait = -1

// Checkpoints makes these functions fail or wait from now on, and no others.
func (d *Driver) Checkpoints(list ...Checkpoint) error {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "%s %d %d\n", c.Function, c.PID, c.Result)
	}
	return d.steer("checkpoint", b.String())
}

// Memory makes every GPU have so many bytes, as far as resumed processes need them.
func (d *Driver) Memory(bytes int) error { return d.steer("memory", fmt.Sprintln(bytes)) }

func (d *Driver) steer(name, content string) error {
	return writeFile(d.steering(name), content, 0o644)
}

// steering is a file that the simulated NVML looks for where its device nodes are.
func (d *Driver) steering(name string) string {
	return filepath.Join(d.DevRoot, "dev/nvidia-sim", name)
}
