package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Files of the host, and containerd's log, which k3s and RKE2 keep in files. Tests have others.
var (
	hostFiles = []string{
		"/proc/version", "/proc/sys/kernel/hostname", "/etc/os-release", runtimeclass.RecordPath,
		"/etc/containerd/*/" + runtimeclass.DropInName, "/var/lib/rancher/*/agent/etc/containerd/*/" + runtimeclass.DropInName,
	}
	journalctl = "/usr/bin/journalctl"
	logFiles   = "/var/lib/rancher/*/agent/containerd/containerd.log"
)

// maxLog bounds a file of a log, in bytes, and logLines what is kept of all.
const maxLog, logLines = 256 << 20, 500

func bundleCommand() *cli.Command {
	return &cli.Command{
		Name:  "bundle",
		Usage: "write what a report of a problem needs into one file (as root)",
		Description: "The tar.gz has the output of info, check, status, version and plan, the versions of the driver, the daemons and runc, the " +
			"shim's configuration and records, the record and drop-ins of install, its runtimes in Docker's configuration, and the shim's " +
			"lines of containerd's log. It has no environment of a container and nothing else of a daemon's configuration.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FILE` to make (default: nvidia-shim-TIME.tar.gz)"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if os.Geteuid() != 0 {
				return errors.New("only root can read the records of containers: run bundle as root")
			}
			files := collect(ctx, c)
			name := cmp.Or(c.String("output"), "nvidia-shim-"+time.Now().UTC().Format("20060102T150405Z")+".tar.gz")
			if err := writeBundle(name, files); err != nil {
				return err
			}
			return output(c, map[string]any{"file": name, "contents": slices.Sorted(maps.Keys(files))}, true, func(o *term.Output) { o.Line(term.Plain, name) })
		},
	}
}

// collect returns the content of the files by name. A file NAME.err says why NAME is not whole.
func collect(ctx context.Context, c *cli.Command) map[string][]byte {
	files := map[string][]byte{}
	add := func(name string, data []byte, err error) {
		if len(data) > 0 {
			files[name] = data
		}
		if err != nil {
			files[name+".err"] = []byte(err.Error() + "\n")
		}
	}
	common := []string{runtimeclass.CtlName, "--json"}
	if c.String("config") != "" {
		common = append(common, "--config", c.String("config"))
	}
	for _, args := range [][]string{{"info"}, {"check"}, {"version"}, {"status"}, {"plan", "--env", "NVIDIA_VISIBLE_DEVICES=all"}} {
		var out, errs bytes.Buffer
		// The library takes a command line with this context for a part of this one.
		run(context.Background(), slices.Concat(common, args), &out, &errs)
		add(args[0]+".json", out.Bytes(), nil)
		add(args[0]+".json.err", errs.Bytes(), nil)
	}
	var versions bytes.Buffer
	err := printJSON(&versions, check.Versions(ctx, check.Options{Root: "/", Proc: procfs.Host, Config: c.String("config")}))
	add("versions.json", versions.Bytes(), err)
	for _, b := range status.Bundles(procfs.Host, status.StateDirs) {
		var data bytes.Buffer
		plan, err := b.Plan()
		if err == nil {
			err = printJSON(&data, plan)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			add(path.Join("containers", b.Namespace, b.ID+".json"), data.Bytes(), err)
		}
	}
	for _, pattern := range append(hostFiles, cmp.Or(c.String("config"), config.DefaultPath)) {
		names, _ := filepath.Glob(pattern) // the patterns are correct
		for _, name := range names {
			data, err := os.ReadFile(name)
			add(path.Join("host", name), data, err)
		}
	}
	data, err := shimLog(ctx)
	add("log.txt", data, err)
	return files
}

// shimLog returns the last lines about the shim in containerd's log.
func shimLog(ctx context.Context) ([]byte, error) {
	text, err := journal(ctx)
	names, _ := filepath.Glob(logFiles)
	for _, name := range names {
		var more []byte
		more, _, err = trusted.Read(name, maxLog)
		text = append(text, more...)
	}
	var lines [][]byte
	for line := range bytes.Lines(text) {
		// How the shim begins its messages, and errors in those of others.
		if bytes.Contains(line, []byte(`"nvidia: `)) || bytes.Contains(line, []byte(": nvidia: ")) {
			lines = append(lines, line)
		}
	}
	return bytes.Join(lines[max(0, len(lines)-logLines):], nil), err
}

// journal returns what daemons with a containerd logged. journalctl is executed if only root can
// change it, by its path and with nothing of this environment.
func journal(ctx context.Context) (text []byte, err error) {
	var st unix.Stat_t
	if err = unix.Stat(journalctl, &st); err == nil {
		err = trusted.RootFile(&st)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, journalctl, "--quiet", "--no-pager", "--lines=50000",
			"--unit=containerd", "--unit=docker", "--unit=k3s", "--unit=k3s-agent", "--unit=rke2-server", "--unit=rke2-agent")
		cmd.Env, cmd.WaitDelay = []string{"LC_ALL=C"}, time.Second
		text, err = cmd.Output()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", journalctl, err)
	}
	return text, err
}

// writeBundle writes a new archive, which only root can read.
func writeBundle(name string, files map[string][]byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		h := tar.Header{Name: path.Join("nvidia-shim", file), Mode: 0o600, Size: int64(len(files[file])), ModTime: time.Now()}
		if err = cmp.Or(err, w.WriteHeader(&h)); err == nil {
			_, err = w.Write(files[file])
		}
	}
	if err = cmp.Or(err, w.Close(), z.Close(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
