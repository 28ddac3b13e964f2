package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

//go:embed csrc
var sources embed.FS

// unit is one file to compile: a C source, the definitions it is compiled with,
// and the libraries it links to.
type unit struct {
	source  string
	defines []string
	flags   []string
	soname  string // "" for a program
	needs   []unit
}

// builder compiles units and keeps the results by what went into them, so that
// the next simulated driver is a matter of copying.
type builder struct {
	compiler string
	identity string        // of the compiler
	cache    string        // directory of the objects
	scratch  string        // removed by close: the sources, and the cache if there is no other
	slots    chan struct{} // for compilers that run at once
}

// commonFlags restrict the output to what old loaders and musl's support: no stack protector and no
// fortified functions, whose symbols are glibc's, and both kinds of hash table.
var commonFlags = []string{
	"-O1", "-Wall", "-Werror", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-fno-asynchronous-unwind-tables",
	"-nostartfiles", "-s", "-Wl,--no-as-needed", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--hash-style=both",
}

// newBuilder finds the compiler. dir is an existing directory for scratch files.
func newBuilder(dir string) (*builder, error) {
	if machine == "" {
		return nil, fmt.Errorf("the architecture %s is not simulated: amd64 and arm64 are", runtime.GOARCH)
	}
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		return nil, errors.New("the libraries are compiled with gcc, which is not installed: apt-get install gcc libc6-dev (Debian's packages)")
	}
	real, err := filepath.EvalSymlinks(compiler)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(real)
	if err != nil {
		return nil, err
	}
	b := &builder{compiler: compiler, slots: make(chan struct{}, 2)}
	b.identity = fmt.Sprintf("%s %d %d", real, st.Size(), st.ModTime().UnixNano())
	if b.scratch, err = os.MkdirTemp(dir, "build-"); err != nil {
		return nil, err
	}
	if err := os.CopyFS(b.scratch, sources); err != nil {
		b.close()
		return nil, err
	}
	b.cache = b.scratch
	if user, err := os.UserCacheDir(); err == nil {
		cache := filepath.Join(user, "containerd-shim-nvidia", "simdriver")
		if os.MkdirAll(cache, 0o755) == nil {
			b.cache = cache
		}
	}
	return b, nil
}

func (b *builder) close() { os.RemoveAll(b.scratch) }

// args are the compiler's arguments but for the names of the files.
func (u unit) args() []string {
	args := slices.Clone(commonFlags)
	for _, d := range u.defines {
		args = append(args, "-D"+d)
	}
	if u.soname != "" {
		args = append(args, "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,"+u.soname)
	}
	return append(args, u.flags...)
}

// object compiles u, or finds that it has been compiled, and returns the file.
func (b *builder) object(ctx context.Context, u unit) (string, error) {
	link, err := b.objects(ctx, u.needs)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q\n", b.identity, u.args())
	for _, name := range []string{u.source, "sim.h", "start.h", "limits.h"} {
		data, err := sources.ReadFile("csrc/" + name)
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	for _, dep := range link { // its name is its content's hash
		fmt.Fprintln(h, filepath.Base(dep))
	}
	object := filepath.Join(b.cache, fmt.Sprintf("%x", h.Sum(nil)))
	if _, err := os.Stat(object); err == nil {
		return object, nil
	}
	b.slots <- struct{}{}
	defer func() { <-b.slots }()
	tmp, err := os.CreateTemp(b.cache, "new-")
	if err != nil {
		return "", err
	}
	tmp.Close()
	defer os.Remove(tmp.Name())
	args := append(u.args(), "-o", tmp.Name(), filepath.Join(b.scratch, "csrc", u.source))
	cmd := exec.CommandContext(ctx, b.compiler, append(args, link...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s: %w: %s (the C library's headers are Debian's package libc6-dev)", u.source, err, firstLine(out))
	}
	return object, os.Rename(tmp.Name(), object)
}

func firstLine(out []byte) string {
	for _, line := range bytes.Split(out, []byte("\n")) {
		if bytes.Contains(line, []byte("error")) {
			return string(line)
		}
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}

// objects compiles units and returns the files in order.
func (b *builder) objects(ctx context.Context, units []unit) ([]string, error) {
	files, errs := make([]string, len(units)), make([]error, len(units))
	var wg sync.WaitGroup
	for i, u := range units {
		wg.Go(func() { files[i], errs[i] = b.object(ctx, u) })
	}
	wg.Wait()
	return files, errors.Join(errs...)
}

// libraryUnit is how l is compiled.
func (d *Driver) libraryUnit(l library) unit {
	u := unit{
		source: l.source, soname: l.sonameOf(d.Version),
		defines: []string{define("SIM_VERSION", d.Version), define("SIM_LIBRARY", l.name)},
	}
	for _, need := range l.needs {
		u.needs = append(u.needs, d.libraryUnit(libraryNamed(need)))
	}
	switch u.source {
	case "":
		u.source = "library.c"
	case "cuda.c", "nvml.c":
		gpus, migs := d.tables()
		u.defines = append(u.defines, fmt.Sprintf("SIM_CUDA=%d", d.cudaVersion()), fmt.Sprintf("SIM_BRANCH=%d", d.branch()), "SIM_GPUS="+gpus, "SIM_MIGS="+migs)
	}
	return u
}

// unit32 is the 32-bit edition of l, which needs a libc.so.6.
func (d *Driver) unit32(l library) unit {
	u := unit{source: "library32.c", flags: []string{"-m32", "-nostdlib"}}
	libc := u
	libc.soname, libc.defines = "libc.so.6", []string{define("SIM_VERSION", ""), define("SIM_LIBRARY", "")}
	u.needs = append(u.needs, libc)
	for _, need := range l.needs {
		u.needs = append(u.needs, d.unit32(libraryNamed(need)))
	}
	u.soname, u.defines = l.sonameOf(d.Version), []string{define("SIM_VERSION", d.Version), define("SIM_LIBRARY", l.name)}
	return u
}

func (d *Driver) programUnit(p program) unit {
	u := unit{
		source:  "program.c",
		defines: []string{define("SIM_VERSION", d.Version), define("SIM_PROGRAM", p.name)},
		flags:   []string{"-fPIE", "-pie"},
	}
	if p.name == "nvidia-smi" {
		// glibc before 2.34 has dlopen in a library of its own, of which newer
		// development packages have only the run-time name.
		u.source, u.flags = "smi.c", append(u.flags, "-l:libdl.so.2")
	}
	return u
}

func define(name, value string) string { return fmt.Sprintf("%s=%q", name, value) }

// tables are the initializers of sim_gpus and sim_migs in sim.h.
func (d *Driver) tables() (gpus, migs string) {
	var g, m strings.Builder
	position := map[int]int{}
	n := 0
	for _, gpu := range d.GPUs {
		if gpu.Excluded {
			continue
		}
		mig := 0
		if slices.ContainsFunc(d.MIG, func(m MIG) bool { return m.GPU == gpu.Index }) {
			mig = 1
		}
		var domain, bus, device int
		fmt.Sscanf(gpu.BusID, "%x:%x:%x", &domain, &bus, &device)
		var major, minor int
		fmt.Sscanf(gpu.Arch, "%d.%d", &major, &minor)
		fmt.Fprintf(&g, "{%q,%d,%d,%d,%d,%d,%d,%d,%d,%q},", gpu.UUID, domain, bus, device, gpu.Minor, mig, brands[gpu.Brand], major, minor, gpu.Name)
		position[gpu.Index] = n
		n++
	}
	for _, mig := range d.MIG {
		if p, ok := position[mig.GPU]; ok {
			fmt.Fprintf(&m, "{%d,%d,%d,%d,%d,%q},", p, mig.GI, mig.CI, mig.GIMinor, mig.CIMinor, mig.UUID)
		}
	}
	return g.String(), m.String()
}

// copyFile installs a compiled file under its name, which may be in use.
func copyFile(from, to string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, string(data), mode)
}
