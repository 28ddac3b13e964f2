package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/bench/report"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/images"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// options are the command line.
type options struct {
	rounds    int
	out       string
	json      string
	only      *regexp.Regexp
	before    string
	bin       string
	imagesDir string
	prepare   string
	render    string
	real      bool
	cgroup    int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parse reads the command line.
func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "n", 40, "how often each case is measured")
	flags.StringVar(&o.out, "out", "docs/benchmarks.md", "the `page` whose generated part is replaced; empty for none")
	flags.StringVar(&o.json, "json", "", "`file` for all samples, for -render")
	only := flags.String("only", "", "measure only the cases and other rows (memory, burst, many) whose name matches this `expression`, and write no page")
	flags.StringVar(&o.before, "before", "", "measure another build of the shim as well, this `file`, and write no page")
	flags.StringVar(&o.bin, "bin", "", "`directory` with the shim, and in its tools/ containerd, ctr, the stock shim and runc (default: bin/ of the repository)")
	flags.StringVar(&o.imagesDir, "images", "", "`directory` with images that -prepare made; nothing is built then")
	flags.StringVar(&o.prepare, "prepare", "", "build the images into a `directory`, for a host without a compiler, and end")
	flags.StringVar(&o.render, "render", "", "make the page from a `file` that -json wrote, and end")
	flags.BoolVar(&o.real, "real", false, "use the NVIDIA driver of this host")
	flags.IntVar(&o.cgroup, "cgroup", 0, "cgroup `version`, 1 or 2 (default: the host's own)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.rounds < 1 {
		return o, errors.New("there are no arguments, and -n is at least 1: see -help")
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, err
	}
	// containerd takes an absolute path for a runtime's name, and ctr, which imports the
	// images, runs in another directory.
	for _, path := range []*string{&o.before, &o.imagesDir, &o.bin} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	// Its processes are recognised by their name.
	if o.before != "" && !strings.HasPrefix(filepath.Base(o.before), "containerd-shim-") {
		return o, fmt.Errorf("-before %s: the file's name has to begin with containerd-shim-", o.before)
	}
	if *only != "" || o.before != "" {
		o.out = ""
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	switch {
	case o.prepare != "":
		return prepare(o.prepare)
	case o.render != "":
		r, err := load(o.render)
		if err != nil {
			return err
		}
		return publish(r, o.out, out)
	}
	if o.bin != "" {
		os.Setenv("NVIDIA_SHIM_BIN", o.bin)
	}
	if missing := testenv.Missing("containerd-shim-nvidia-v2"); len(missing) > 0 {
		return fmt.Errorf("this host lacks: %s", strings.Join(missing, "; "))
	}
	r := &Result{Real: o.real, Rounds: o.rounds}
	h := &testenv.Lifetime{}
	if err := h.Run(func() error { return o.measure(ctx, h, r) }); err != nil {
		return err
	}
	if o.json != "" {
		if err := r.store(o.json); err != nil {
			return err
		}
	}
	return publish(r, o.out, out)
}

// wants reports whether a row is to be measured.
func (o options) wants(name string) bool { return o.only.MatchString(name) }

// measure fills in the result.
func (o options) measure(ctx context.Context, h *testenv.Lifetime, r *Result) error {
	work, err := workDir(h)
	if err != nil {
		return err
	}
	var g *target
	if o.real {
		g, err = o.realTarget(h, work, r)
	} else {
		g, err = o.simulatedTarget(h, work)
	}
	if err != nil {
		return err
	}
	if err := o.addLarge(g, r); err != nil {
		return err
	}
	r.Cases = g.cases(o)
	env := testenv.Options{Cgroup: o.cgroup, ShimConfig: g.configPath, ShimDir: testenv.ShimDir()}
	main := startDaemon(h, env, g.stateDir, g.tars)
	b := &bench{Lifetime: h, result: r, daemons: map[string]*daemon{"": main}}
	if o.before != "" {
		for _, build := range []string{ours, before} {
			if b.daemons[build], err = startBuild(h, env, g, build); err != nil {
				return err
			}
		}
	}
	r.Host = report.DescribeHost(testenv.ShimDir(), main.env.Options.ToolsDir, main.env.Options.Cgroup)
	r.Host.Driver, r.Host.GPUs = g.driver, g.gpus
	if main.env.Options.Cgroup == 2 && testenv.CgroupVersions()[0] == 1 {
		return errors.New("-cgroup 2 on a host with version 1 puts containerd into a mount namespace where the cold view cannot be arranged")
	}
	if err := b.nodesOnly(ctx); err != nil {
		return err
	}
	all := slices.Clone(r.Cases)
	if o.real {
		smi := variant(all, caseOne, ours).options("nvidia-smi", "-L")
		fmt.Fprint(os.Stderr, "nvidia-smi -L in a container with one GPU: ", b.daemonOf(variant(all, caseOne, ours)).env.MustRun(h, smi))
	}

	r.Cases = slices.DeleteFunc(r.Cases, func(c Case) bool { return !o.wants(c.Name) })
	err = b.measure(ctx, o.rounds, func(round int) {
		fmt.Fprintf(os.Stderr, "\rround %d of %d ", round+1, o.rounds)
	})
	fmt.Fprintln(os.Stderr)
	if err != nil {
		return err
	}
	if err := o.measureOthers(ctx, b, all); err != nil {
		return err
	}
	return r.measureBinaries(testenv.ShimDir(), main.env.Options.ToolsDir)
}

// addLarge adds the large image, which a GPU host need not have.
func (o options) addLarge(g *target, r *Result) error {
	large, err := o.image("large")
	switch {
	case err == nil:
		g.large = images.Ref("large")
		g.tars = append(g.tars, large)
	case !o.real:
		return err
	default:
		r.Notes = append(r.Notes, "The large image was not measured: "+err.Error())
	}
	return nil
}

// measureOthers measures what is not the time of single containers.
func (o options) measureOthers(ctx context.Context, b *bench, all []Case) (err error) {
	r, one, plain := b.result, variant(all, caseOne, ours), variant(all, caseOne, stock)
	if o.wants("memory") {
		variants := []Variant{plain, one}
		if o.before != "" {
			variants = append(variants, variant(all, caseOne, before))
		}
		if r.Memory, err = b.memory(ctx, variants...); err != nil {
			return err
		}
	}
	if o.wants("burst") {
		if r.Burst, err = b.burst(ctx, plain, one); err != nil {
			return err
		}
	}
	if o.wants("many") {
		r.Many = map[string]Many{}
		for _, v := range []Variant{plain, one} {
			if r.Many[v.Name], err = b.many(ctx, plain, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// startBuild starts a containerd for one of two builds of the shim. It has the same
// configuration but for the state directory.
func startBuild(h *testenv.Lifetime, env testenv.Options, g *target, build string) (*daemon, error) {
	text, err := os.ReadFile(g.configPath)
	if err != nil {
		return nil, err
	}
	own := g.stateDir + "-" + build
	env.ShimConfig = g.configPath + "-" + build
	if err := os.WriteFile(env.ShimConfig, bytes.ReplaceAll(text, []byte(g.stateDir), []byte(own)), 0o600); err != nil {
		return nil, err
	}
	return startDaemon(h, env, own, g.tars), nil
}

// workDir makes a tmpfs for all files of this run, containerd's too, so that nothing depends on
// what the disk did before: ext4 does not reuse an inode that was deleted in the last minutes, so
// after a few thousand containers each file that Create makes costs half a millisecond of
// searching.
func workDir(h *testenv.Lifetime) (string, error) {
	dir, err := os.MkdirTemp("", "nvbench")
	if err != nil {
		return "", err
	}
	h.Cleanup(func() { os.Remove(dir) })
	// Containers with user namespaces pass through on the way to the driver.
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return "", fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	h.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, os.Setenv("TMPDIR", dir)
}

func (r *Result) measureBinaries(shimDir, toolsDir string) error {
	r.Binaries = map[string]int64{}
	for name, dir := range map[string]string{"containerd-shim-nvidia-v2": shimDir, "containerd-shim-runc-v2": toolsDir} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		r.Binaries[name] = info.Size()
	}
	return nil
}
