package attacks

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// T62: whatever the files with facts about the driver contain, containers get the GPUs of this host.
func TestT62DamagedStateIsMadeAgain(t *testing.T) {
	h := newHost(t, simhost.Options{})
	for _, name := range []string{"driver.json", "driver-compute-utility.json"} {
		t.Run(name, func(t *testing.T) { testDamaged(t, h, name) })
	}
	t.Run("T62 then all is well", func(t *testing.T) { h.sees(t, testenv.RunOptions{Env: []string{one}}, 0) })
}

// testDamaged damages one of the files, while the others are missing.
func testDamaged(t *testing.T, h *host, base string) {
	h.sees(t, testenv.RunOptions{Env: []string{one}}, 0)
	name := filepath.Join(h.Driver.StateDir, base)
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file := func(text []byte) func() error { return func() error { return os.WriteFile(name, text, 0o600) } }
	flipped := bytes.Clone(good)
	for i := 0; i < len(flipped); i += 97 {
		flipped[i] ^= 1
	}
	replace := func(old, new string) []byte { return bytes.ReplaceAll(good, []byte(old), []byte(new)) }
	for _, tc := range []struct {
		name   string
		damage func() error
	}{
		{"T62 empty", file(nil)}, {"T62 cut in half", file(good[:len(good)/2])}, {"T62 with flipped bits", file(flipped)}, {"T62 of zeros", file(make([]byte, len(good)))},
		{"T62 of another driver", file(replace(h.Driver.Version, "999.99.99"))},
		{"T62 that names files of the host", file(replace(h.Driver.Root, "/etc"))},
		{"T62 of a terabyte", func() error { return os.Truncate(name, 1<<40) }},
		{"T62 of another owner", func() error { return errors.Join(file(replace(h.Driver.Root, h.canary))(), os.Chown(name, 1000, 1000)) }},
		{"T62 that all can write", func() error { return errors.Join(file(replace(h.Driver.Root, h.canary))(), os.Chmod(name, 0o666)) }},
		{"T62 a link", func() error {
			return errors.Join(os.Remove(name), os.Symlink(filepath.Join(h.canary, "sub/file"), name))
		}},
		{"T62 a FIFO", func() error { return errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600)) }},
		{"T62 a directory", func() error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.unharmed(t, func() {
				defer os.RemoveAll(name)
				for _, other := range namesIn(h.Driver.StateDir) {
					if strings.HasPrefix(other, "driver") {
						_ = os.Remove(filepath.Join(h.Driver.StateDir, other))
					}
				}
				if err := errors.Join(os.WriteFile(name, good, 0o600), tc.damage()); err != nil {
					t.Fatal(err)
				}
				r := h.Run(t, testenv.RunOptions{Env: []string{one}, Args: h.ProbeArgs()})
				if r.ExitCode == 0 {
					simhost.Compare(t, simhost.Parse(r.Output), h.Expect([]int{0}))
				} else if clean(t, r); !strings.Contains(r.Error, h.Driver.StateDir) {
					t.Errorf("the error does not name the file: %s", r.Error)
				} else {
					t.Logf("refused: %s", strings.TrimSpace(r.Error))
				}
				if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() && (info.Mode().Perm()&0o022 != 0 || info.Size() > 1<<30) {
					t.Errorf("the file is still as it was: %v, %d bytes", info.Mode(), info.Size())
				}
			})
		})
	}
}

// T61: a file that other users can change grants nothing and is not used, and the error names it.
func TestT61StateAndConfigurationThatOthersCanChange(t *testing.T) {
	h := newHost(t, simhost.Options{})
	state, config := h.Driver.StateDir, h.Driver.ConfigPath
	aside := func(name string, instead func() error) func() error {
		return func() error { return errors.Join(os.Rename(name, name+".aside"), instead()) }
	}
	back := func(name string) func() error {
		return func() error { return errors.Join(os.RemoveAll(name), os.Rename(name+".aside", name)) }
	}
	mode := func(name string, mode os.FileMode) func() error { return func() error { return os.Chmod(name, mode) } }
	owner := func(name string, uid int) func() error { return func() error { return os.Chown(name, uid, uid) } }
	evil := filepath.Join(h.Dir, "evil.toml")
	for _, tc := range []struct {
		name         string
		change, undo func() error
		file         string
	}{
		{"T61 a state directory of another user", owner(state, 1000), owner(state, 0), state},
		{"T61 a state directory that all can write", mode(state, 0o777), mode(state, 0o700), state},
		{"T61 a state directory that is a link", aside(state, func() error { return os.Symlink(h.canary, state) }), back(state), state},
		{"T61 a directory around it that all can write", mode(filepath.Dir(state), 0o777), mode(filepath.Dir(state), 0o755), state},
		{"T61 a configuration of another user", owner(config, 1000), owner(config, 0), config},
		{"T61 a configuration that a group can write", mode(config, 0o664), mode(config, 0o644), config},
		{"T61 a configuration that is a link to another user's", aside(config, func() error {
			return errors.Join(os.WriteFile(evil, []byte("[host]\nstate-dir = \"/\"\n"), 0o644), os.Chown(evil, 1000, 1000), os.Symlink(evil, config))
		}), back(config), evil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.unharmed(t, func() {
				if err := tc.change(); err != nil {
					t.Fatal(err)
				}
				r := h.Run(t, testenv.RunOptions{Env: []string{one}, Args: []string{"/bin/true"}})
				if clean(t, r) || !strings.Contains(r.Error, tc.file) {
					t.Errorf("it started, or the error does not name %s: %s", tc.file, r.Error)
				}
				if err := tc.undo(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
	h.sees(t, testenv.RunOptions{Env: []string{one}}, 0)
}

// T65: the shim of a pod runs out of descriptors at every point of a creation. Full disks and
// read-only state are in integration/robustness.
func TestT65AShimWithoutDescriptorsLeavesNothing(t *testing.T) {
	h := newHost(t, simhost.Options{})
	var was unix.Rlimit
	if err := unix.Prlimit(h.shim, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	started, refused := 0, 0
	for spare := range uint64(60) {
		h.unharmed(t, func() {
			limit := unix.Rlimit{Cur: uint64(len(namesIn(fmt.Sprintf("/proc/%d/fd", h.shim)))) + spare, Max: was.Max}
			if err := unix.Prlimit(h.shim, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
				t.Fatal(err)
			}
			r, err := h.TryRun(t, testenv.RunOptions{Annotations: []string{inPod}, Env: []string{one}, Args: h.ProbeArgs()})
			if err := unix.Prlimit(h.shim, unix.RLIMIT_NOFILE, &was, nil); err != nil {
				t.Fatal(err)
			}
			if err != nil {
				t.Errorf("with %d descriptors: %v", spare, err)
			} else if r.ExitCode == 0 {
				started++
				simhost.Compare(t, simhost.Parse(r.Output), h.Expect([]int{0}))
			} else {
				// runc cannot be started to clean up, either: the container's client does it later.
				refused++
				h.Gone(t, r.ID)
			}
		})
		if t.Failed() {
			t.Fatalf("with %d descriptors to spare", spare)
		}
	}
	t.Logf("%d started, %d refused", started, refused)
	if refused == 0 || started == 0 {
		t.Error("the limits are not those at which a creation fails or succeeds")
	}
	h.sees(t, testenv.RunOptions{Env: []string{one}}, 0)
}

func TestT66WithoutADriverARequestFailsFastAndOthersAreNotAffected(t *testing.T) {
	h := newHost(t, simhost.Options{})
	dir := h.Tree(t, "glibc-hwcaps")
	for _, missing := range []string{filepath.Join(h.Driver.ProcRoot, "driver"), h.Driver.Root, filepath.Join(h.Driver.DevRoot, "dev")} {
		t.Run("T66 no "+filepath.Base(missing), func(t *testing.T) {
			simhost.Away(t, missing)
			_ = os.Mkdir(missing, 0o755) // the oracle looks into it
			if r, ran := h.attempt(t, testenv.RunOptions{RootfsDir: dir, Env: []string{one}, Args: []string{"/bin/busybox", "sh", "-c", look}}); ran || !strings.Contains(r.Error, "nvidia: ") {
				t.Errorf("exit status %d, %s", r.ExitCode, r.Error)
			}
			r, ran := h.attempt(t, testenv.RunOptions{RootfsDir: dir, Args: []string{"/bin/busybox", "sh", "-c", look + "; ls /usr/local/nvidia 2>&1; true"}})
			if !ran || strings.Contains(r.Output, "lib64") {
				t.Errorf("a container without a request: exit status %d, %s%s", r.ExitCode, r.Output, r.Error)
			}
		})
	}
}
