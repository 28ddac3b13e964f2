package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Process is a process that uses a GPU, as NVML lists it.
type Process struct {
	// UUID is that of the GPU or MIG device.
	UUID string
	PID  int
	// Memory is what it has allocated there, in bytes.
	Memory uint64
	// Graphics is true if it draws and false if it computes. MPS is true for a client of MPS.
	Graphics, MPS bool
}

// Place makes NVML list these processes from now on, and no others.
func (d *Driver) Place(list ...Process) error {
	var b strings.Builder
	for _, p := range list {
		kind := "C"
		if p.Graphics {
			kind = "G"
		}
		if p.MPS {
			kind = "M"
		}
		fmt.Fprintf(&b, "%s %d %d %s\n", p.UUID, p.PID, p.Memory, kind)
	}
	return d.steer("processes", b.String())
}

// Hang makes nvmlInit hang, as with a wedged driver; with false it works again.
func (d *Driver) Hang(on bool) error {
	if !on {
		return os.RemoveAll(d.steering("hang"))
	}
	return d.steer("hang", "")
}

// Unsupport makes functions of NVML, such as "nvmlDeviceGetBrand", report that the GPU does not
// have the property; without arguments every GPU has them all again.
func (d *Driver) Unsupport(functions ...string) error {
	return d.steer("unsupported", strings.Join(functions, "\n")+"\n")
}

// Fault is what a function of NVML does for one device.
type Fault struct {
	Function string // "nvmlDeviceGetUUID"
	UUID     string // of the GPU or MIG device
	// Code is the nvmlReturn_t, such as 15 for a lost GPU, or Wait: it does not return.
	Code int
}

// Faults makes functions of NVML fail or hang for a device from now on, and no others.
func (d *Driver) Faults(list ...Fault) error {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%s %s %d\n", f.Function, f.UUID, f.Code)
	}
	return d.steer("faults", b.String())
}

// Answer is what a function of NVML answers for a device.
type Answer struct {
	Function string // "nvmlDeviceGetName"
	UUID     string // of the GPU or MIG device
	// Value is a text or a number, which may be empty or hold any byte but 0 and a new line.
	Value string
}

// Answers makes functions of NVML answer with these values from now on, and with no others.
func (d *Driver) Answers(list ...Answer) error {
	var b strings.Builder
	for _, a := range list {
		fmt.Fprintf(&b, "%s %s %s\n", a.Function, a.UUID, a.Value)
	}
	return d.steer("answers", b.String())
}

// Types of NVML's events.
const (
	DoubleBitECC   = 0x2
	CriticalXid    = 0x8
	RecoveryAction = 0x8000
)

// Event is an event of a GPU.
type Event struct {
	UUID string // of the GPU
	Type int
	// Data of a CriticalXid is its number.
	Data int
}

// Raise gives events to the event sets that exist.
func (d *Driver) Raise(list ...Event) error {
	if err := os.MkdirAll(filepath.Dir(d.steering("events")), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(d.steering("events"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%s %d %d\n", e.UUID, e.Type, e.Data)
	}
	_, err = f.WriteString(b.String())
	return err
}

// recovery has the recovery action of NVML after an Xid: 1 resets the GPU, 2 reboots the node, 4
// drains and resets it.
var recovery = map[int]int{48: 1, 62: 1, 64: 1, 79: 2, 94: 4, 95: 1, 119: 1, 120: 1, 140: 1, 143: 1}

// Xid reports an Xid of a GPU, and from then on, until Reset, the recovery action that it needs.
func (d *Driver) Xid(uuid string, number int) error {
	list := []Event{{uuid, CriticalXid, number}}
	action := recovery[number]
	if action == 0 {
		return d.Raise(list...)
	}
	ofRecovery := func(line string) bool { return strings.HasPrefix(line, uuid+" recovery ") }
	err := d.change("properties", ofRecovery, fmt.Sprintf("%s recovery %d\n", uuid, action))
	if d.branch() >= 570 { // the first with this event
		list = append(list, Event{uuid, RecoveryAction, action})
	}
	return errors.Join(err, d.Raise(list...))
}

// Property is what NVML reports about the health of a GPU: "recovery" (nvmlDeviceGpuRecoveryAction_t),
// "ecc" (uncorrected errors since the driver was loaded), "ecc-corrected", "remap-pending",
// "remap-failed", "pages-pending", "unrepairable" (driver 595).
type Property struct {
	UUID, Name string
	Value      int
}

// Set sets the properties, and every other one to 0.
func (d *Driver) Set(list ...Property) error {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%s %s %d\n", p.UUID, p.Name, p.Value)
	}
	return d.steer("properties", b.String())
}

// Busy is how much of the time a process keeps a GPU busy, in percent.
type Busy struct {
	UUID    string
	PID     int
	Percent int
}

// Utilize makes NVML report the utilization of these processes from now on, and of no others. Their sum
// is the utilization in all samples of a GPU, past ones too. It has 72, five a second; an Answer of
// "nvmlDeviceGetSamples" is another number, or "stopped" and the time of the last sample in
// microseconds.
func (d *Driver) Utilize(list ...Busy) error {
	var b strings.Builder
	for _, u := range list {
		fmt.Fprintf(&b, "%s %d %d\n", u.UUID, u.PID, u.Percent)
	}
	return d.steer("utilization", b.String())
}

// Account is what NVML's accounting has about a process, until the driver is unloaded.
type Account struct {
	UUID string // of the GPU
	PID  int
	// Percent is how much of its time a kernel ran, and MemoryPercent how much of it memory was
	// read or written.
	Percent, MemoryPercent int
	// MaxMemory is the most that it had on the GPU, in bytes.
	MaxMemory uint64
	Time      time.Duration
	Running   bool
}

// Accounts turns accounting mode on with these processes and no others; without any, it turns it
// off.
func (d *Driver) Accounts(list ...Account) error {
	var b strings.Builder
	for _, a := range list {
		running := 0
		if a.Running {
			running = 1
		}
		fmt.Fprintf(&b, "%s %d %d %d %d %d %d\n", a.UUID, a.PID, a.Percent, a.MemoryPercent, a.MaxMemory, a.Time.Milliseconds(), running)
	}
	return d.steer("accounting", b.String())
}

// Modprobe makes nvmlInit execute program and make the file <program>.node, as the real one does
// with nvidia-modprobe if a device node is missing.
func (d *Driver) Modprobe(program string) error { return d.steer("modprobe", program+"\n") }

// Checkpoint is what a function of libcuda that suspends processes does: "Lock",
// "Checkpoint", "Restore" or "Unlock".
type Checkpoint struct {
	Function string
	// PID is the process that is suspended; 0 is every process.
	PID int
	// Result is the CUresult, or Wait or WaitFirst.
	Result int
}

// Wait makes a function wait until it is told otherwise, when it has found the process; WaitFirst
// before it looks for it.
const (
	Wait      = -1
	WaitFirst = -2
)

// Checkpoints makes these functions fail or wait from now on, and no others.
func (d *Driver) Checkpoints(list ...Checkpoint) error {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "%s %d %d\n", c.Function, c.PID, c.Result)
	}
	return d.steer("checkpoint", b.String())
}

// ProcDir is where a procfs is mounted in which the driver sees every process, as the kernel does.
// If there is none, it sees what the program sees that asks it.
func (d *Driver) ProcDir() string { return d.steering("proc") }

// Memory limits the memory of every GPU for processes that are resumed.
func (d *Driver) Memory(bytes int) error { return d.steer("memory", fmt.Sprintln(bytes)) }

func (d *Driver) steer(name, content string) error {
	return writeFile(d.steering(name), content, 0o644)
}

// change removes lines of a file, and adds text to it.
func (d *Driver) change(name string, remove func(line string) bool, text string) error {
	data, err := os.ReadFile(d.steering(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(string(data))), remove)
	return d.steer(name, strings.Join(lines, "")+text)
}

// steering is a file that the simulated NVML looks for where its device nodes are.
func (d *Driver) steering(name string) string {
	return filepath.Join(d.DevRoot, "dev/nvidia-sim", name)
}
