package report

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

	shimconfig "github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject/config"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/check"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/procfs"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/status"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// Sources are a host's sources of the data in a report, besides the output of commands.
type Sources struct {
	// Files are patterns of paths.
	Files []string
	// Journalctl is the program that prints containerd's log. Logs are the files of daemons that keep
	// it elsewhere.
	Journalctl string
	Logs       []string
}

// Host has the sources of this host.
var Host = Sources{
	Files: append([]string{
		"/proc/version", "/proc/sys/kernel/hostname", "/etc/os-release", runtimeclass.RecordPath,
	}, dropIns()...),
	Journalctl: "/usr/bin/journalctl",
	Logs:       logs(),
}

// dropIns returns patterns of the files that an installation adds to those of the daemons.
func dropIns() (patterns []string) {
	for _, d := range runtimeclass.Daemons() {
		if d.Config != "" {
			patterns = append(patterns, path.Join(path.Dir(d.Config), "*", runtimeclass.DropInName))
		}
	}
	return patterns
}

func logs() (files []string) {
	for _, d := range runtimeclass.Daemons() {
		if d.Log != "" {
			files = append(files, d.Log)
		}
	}
	return files
}

// maxLog is the size limit of a log file, in bytes. logLines is the number of lines kept of all
// logs.
const maxLog, logLines = 256 << 20, 500

// Collect adds the versions of programs, the shim's records, files of the host and the shim's lines
// of containerd's log. config is the shim's configuration; "" for the default one.
func (s Sources) Collect(ctx context.Context, config string, files Files) {
	files.addJSON("versions.json", check.Versions(ctx, check.Options{Root: "/", Proc: procfs.Host, Config: config}), nil)
	for _, b := range (status.Source{Proc: procfs.Host, Root: "/", StateDirs: status.StateDirs}).Bundles() {
		plan, err := b.Plan()
		if !errors.Is(err, fs.ErrNotExist) {
			files.addJSON(path.Join("containers", b.Namespace, b.ID+".json"), plan, err)
		}
	}
	for _, pattern := range append(slices.Clone(s.Files), cmp.Or(config, shimconfig.DefaultPath)) {
		names, _ := filepath.Glob(pattern) // the patterns are valid
		for _, name := range names {
			data, err := os.ReadFile(name)
			files.Add(path.Join("host", name), data, err)
		}
	}
	data, err := s.shimLog(ctx)
	files.Add("log.txt", data, err)
}

// shimLog returns the last lines about the shim in containerd's log.
func (s Sources) shimLog(ctx context.Context) ([]byte, error) {
	text, err := s.journal(ctx)
	for _, name := range s.Logs {
		more, _, readErr := trusted.Read(name, maxLog)
		if text = append(text, more...); !errors.Is(readErr, fs.ErrNotExist) {
			err = readErr
		}
	}
	var lines [][]byte
	for line := range bytes.Lines(text) {
		// The beginning of the shim's messages, and of its errors within messages of other
		// programs.
		if bytes.Contains(line, []byte(`"nvidia: `)) || bytes.Contains(line, []byte(": nvidia: ")) {
			lines = append(lines, line)
		}
	}
	return bytes.Join(lines[max(0, len(lines)-logLines):], nil), err
}

// journal returns the logs of daemons that have a containerd. It executes journalctl only if no
// user but root can change it, by its path and without this process's environment.
func (s Sources) journal(ctx context.Context) (text []byte, err error) {
	real, err := trusted.Program(s.Journalctl)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	args := []string{"--quiet", "--no-pager", "--lines=50000"}
	for _, d := range runtimeclass.Daemons() {
		for _, unit := range d.Units {
			args = append(args, "--unit="+unit)
		}
	}
	cmd := exec.CommandContext(ctx, real, args...)
	cmd.Env, cmd.WaitDelay = []string{"LC_ALL=C"}, time.Second
	if text, err = cmd.Output(); err != nil {
		err = fmt.Errorf("%s: %w", s.Journalctl, err)
	}
	return text, err
}

// Files maps the names of a report's files to their content.
type Files map[string][]byte

// Add adds a file unless it is empty. If err is not nil, NAME.err has the reason why NAME is
// incomplete.
func (files Files) Add(name string, data []byte, err error) {
	if len(data) > 0 {
		files[name] = data
	}
	if err != nil {
		files[name+".err"] = []byte(err.Error() + "\n")
	}
}

func (files Files) addJSON(name string, v any, err error) {
	var data bytes.Buffer
	if err == nil {
		err = term.JSON(&data, v)
	}
	files.Add(name, data.Bytes(), err)
}

// Write writes a new archive, which only root can read.
func (files Files) Write(name string) error {
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
