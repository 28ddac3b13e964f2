package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// On real GPUs the same is tested by integration/gpu.
func TestWhatRootOfAContainerCannotDoToTheDriver(t *testing.T) {
	h := newHost(t, simhost.Options{})
	dir := h.Tree(t, "glibc-hwcaps")
	run := func(t *testing.T, script string, flags ...string) string {
		t.Helper()
		r, ran := h.attempt(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one}, Extra: flags, Args: []string{"/bin/busybox", "sh", "-c", look + "\n" + script + "\ntrue"}})
		if !ran {
			t.Fatal(r.Error)
		}
		_, out, _ := strings.Cut(r.Output, "done\n")
		return out
	}
	t.Run("T58 registers by sysfs", func(t *testing.T) {
		out := run(t, `grep ' /sys sysfs\| - sysfs ' /proc/self/mountinfo
for f in $(find /sys -name 'resource[0-9]*' -o -name rescan -o -name remove -o -name reset -o -name driver_override -o -name new_id); do ( : >>$f ) 2>/dev/null && echo "opened $f"; done
mount -o remount,rw /sys 2>/dev/null && echo remounted; touch /sys/x 2>/dev/null && echo made`)
		if !strings.Contains(out, " - sysfs ") {
			t.Errorf("no sysfs to look at:\n%s", out)
		}
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) < 6 || !strings.Contains(line, " - sysfs ") || !strings.HasPrefix(f[5], "ro") {
				t.Errorf("sysfs: %s", line)
			}
		}
	})
	t.Run("T59 nvidia-smi and libcuda make no nodes", func(t *testing.T) {
		out := run(t, `ls -l /dev /dev/nvidia* >/before; nvidia-smi >/dev/null; nvidia-smi -L; /test/cucount; ls -l /dev /dev/nvidia* >/after; cmp /before /after && echo same; grep ModifyDeviceFiles `+simhost.Mask+"/nvidia/params", "--cap-add", "CAP_MKNOD")
		simhost.Want(t, out, h.Driver.GPUs[0].UUID, "count 1\n", "same\n", "ModifyDeviceFiles: 0\n")
	})
	t.Run("T56 the driver's files in procfs", func(t *testing.T) {
		out := run(t, "cd "+simhost.Mask+"/nvidia; for f in registry suspend numa_status capabilities/x params version gpus/*/*; do ( echo x >>$f ) 2>/dev/null && echo \"wrote $f\"; done")
		if out != "" {
			t.Error(out)
		}
	})
	t.Run("T57 GPUs that were not granted", func(t *testing.T) {
		out := run(t, "cat $(find "+simhost.Mask+" -type f); ls "+simhost.Mask+"/nvidia/gpus; nvidia-smi -L; /test/cucount")
		simhost.Want(t, out, h.Driver.GPUs[0].UUID, h.Driver.GPUs[0].BusID)
		for _, g := range h.Driver.GPUs[1:] {
			if strings.Contains(out, g.UUID) || strings.Contains(out, g.BusID) {
				t.Errorf("GPU %d is listed:\n%s", g.Index, out)
			}
		}
	})
}

// label is an extended attribute of a file, without the zero at its end.
func label(t *testing.T, name string) string {
	t.Helper()
	value := make([]byte, 256)
	n, err := unix.Getxattr(name, "security.selinux", value)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(value[:n]), "\x00")
}

// T32: a container under the host's security module reads its mask.
func TestT32AppArmorAndSELinux(t *testing.T) {
	t.Run("T32 AppArmor", func(t *testing.T) {
		if on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err != nil || !strings.HasPrefix(string(on), "Y") {
			t.Skip("NOT TESTED: AppArmor is not enabled in this host's kernel")
		}
		if _, err := exec.LookPath("apparmor_parser"); err != nil {
			t.Fatal("apparmor_parser is missing: install Debian's apparmor")
		}
		h := newHost(t, simhost.Options{})
		r, ran := h.attempt(t, testenv.RunOptions{Env: []string{one}, Extra: []string{"--apparmor-default-profile", "nvidia-shim-test"}, Args: []string{"/bin/sh", "-c", look + "; cat /proc/self/attr/current " + simhost.Mask + "/nvidia/params; echo 1 >" + simhost.Mask + "/nvidia/params"}})
		if ran {
			t.Error("the mask could be written")
		}
		simhost.Want(t, r.Output, "nvidia-shim-test (enforce)", "ModifyDeviceFiles: 0\n")
	})
	t.Run("T32 SELinux", func(t *testing.T) {
		if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
			t.Skip("NOT TESTED: SELinux is not enabled in this host's kernel")
		}
		h := newHost(t, simhost.Options{})
		const process, files = "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
		spec := h.Spec(t, testenv.RunOptions{RootfsDir: h.Tree(t, "glibc-nocache"), Env: []string{one}})
		b, _ := h.newBundle(t, testenv.RunOptions{})
		spec["process"].(map[string]any)["selinuxLabel"] = process
		spec["linux"].(map[string]any)["mountLabel"] = files
		spec["linux"].(map[string]any)["cgroupsPath"] = "/" + h.ID + "/" + b.id
		b.write(t, encode(t, spec))
		h.unharmed(t, func() {
			defer b.remove(t)
			pid, err := b.start()
			if err != nil {
				t.Fatal(err)
			}
			params := fmt.Sprintf("/proc/%d/root%s/nvidia/params", pid, simhost.Mask)
			if got := label(t, params); got != files {
				t.Errorf("the mask has the label %q, want %q", got, files)
			}
			if r, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", pid)); err != nil || !strings.HasPrefix(string(r), process) {
				t.Errorf("the process has the label %q: %v", r, err)
			}
		})
	})
}
