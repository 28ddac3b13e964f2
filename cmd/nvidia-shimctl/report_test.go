package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/report"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/runtimeclass"
)

// unpack returns the files of a support bundle by their names below its directory.
func unpack(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	testtree.Check(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	testtree.Check(t, err)
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		testtree.Check(t, err)
		data, err := io.ReadAll(r)
		testtree.Check(t, err)
		file, ok := strings.CutPrefix(h.Name, "nvidia-shim/")
		if !ok || h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		files[file] = string(data)
	}
}

// sources replaces journalctl and the log of a distribution, and adds files.
func sources(t *testing.T, program, logs string, files ...string) {
	t.Helper()
	before := reportSources
	t.Cleanup(func() { reportSources = before })
	reportSources = report.Sources{Files: append(slices.Clone(before.Files), files...), Journalctl: program, Logs: []string{logs}}
}

func TestABundleHasWhatAReportNeedsAndNoSecrets(t *testing.T) {
	d := simulate(t)
	dir, state := t.TempDir(), stateDir(t)
	live(t, state, "k8s.io/live-11", "main", `NVIDIA_API_KEY=secret", "`+allDevices, recordOf("live-11", "main's"))
	live(t, state, "k8s.io/live-21", "sidecar", "TOKEN=secret", "")
	program := filepath.Join(dir, "journalctl")
	testtree.Check(t, os.WriteFile(program, []byte("#!/bin/sh\necho 'msg=\"nvidia: injected'\necho 'msg=\"pulled with secret\"'\nenv\n"), 0o755))
	write(t, filepath.Join(dir, "containerd.log"), "secret\n"+`error="failed to create shim task: nvidia: refused"`+"\n")
	sources(t, program, filepath.Join(dir, "containerd.log"), dir+"/*/nvidia-shim.toml")
	t.Setenv("TOKEN", ": nvidia: secret")
	if !slices.Contains(report.Host.Files, runtimeclass.RecordPath) {
		t.Error("the record of the installation is left out")
	}
	write(t, filepath.Join(dir, "conf.d/nvidia-shim.toml"), "our drop-in")
	write(t, filepath.Join(dir, "conf.d/registry.toml"), "secret")
	name := filepath.Join(dir, "report.tar.gz")
	if out := fine(t, "--config", d.ConfigPath, "bundle", "--output", name); out != name+"\n" {
		t.Errorf("it prints %q", out)
	}
	if st, err := os.Stat(name); err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	files := unpack(t, name)
	for file, want := range map[string]string{
		"info.json": d.GPUs[2].UUID, "check.json": `"findings"`, "status.json": `"containers"`, "version.json": `"revision"`, "versions.json": `"driver": "driver ` + d.Version,
		"plan.json": d.GPUs[2].UUID, "host" + d.ConfigPath: d.Root, "host/proc/version": "Linux ", "containers/k8s.io/live-11.json": "main's",
		"host" + dir + "/conf.d/nvidia-shim.toml": "our drop-in",
		"log.txt": "msg=\"nvidia: injected\nerror=\"failed to create shim task: nvidia: refused\"\n",
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s: no %q in\n%s", file, want, files[file])
		}
	}
	for file, text := range files {
		if strings.Contains(text, "secret") || strings.HasSuffix(file, ".err") {
			t.Errorf("%s has\n%s", file, text)
		}
	}
	// An existing file is not replaced, and no link is followed.
	for _, there := range []string{name, filepath.Join(dir, "link")} {
		_ = os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "link"))
		if status, out, errs := ctl(t, "--config", d.ConfigPath, "bundle", "--output", there); status != 1 || out != "" || !strings.Contains(errs, "file exists") {
			t.Errorf("%s: status %d, %s%s", there, status, out, errs)
		}
	}
	if len(unpack(t, name)) != len(files) {
		t.Error("the bundle was replaced")
	}
}

// The bundle says what is unavailable, and contains the rest.
func TestABundleOfABrokenHost(t *testing.T) {
	dir, state := t.TempDir(), stateDir(t)
	program := filepath.Join(dir, "journalctl")
	testtree.Check(t, os.WriteFile(program, []byte("#!/bin/sh\necho executed > "+dir+"/executed\n"), 0o755))
	testtree.Check(t, os.Chmod(program, 0o757))
	sources(t, program, "")
	name, wrong := filepath.Join(dir, "report.tar.gz"), filepath.Join(dir, "wrong.toml")
	write(t, wrong, "broken")
	bad := live(t, state, "k8s.io/bad", "main", allDevices, recordOf("bad", "forged"))
	testtree.Check(t, os.Chmod(filepath.Join(bad, gpuinject.RecordName), 0o622))
	var out struct{ Contents []string }
	decode(t, fine(t, "--config", wrong, "--json", "bundle", "--output", name), &out)
	files := unpack(t, name)
	for file, want := range map[string]string{
		"info.json.err": "wrong.toml", "status.json.err": "wrong.toml", "plan.json": "wrong.toml", "host" + wrong: "broken", "check.json": "wrong.toml",
		"containers/k8s.io/bad.json.err": "is writable by users other than root", "log.txt.err": program + " is writable by users other than root",
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s: no %q in\n%s", file, want, files[file])
		}
	}
	if len(out.Contents) != len(files) || files["containers/k8s.io/bad.json"] != "" {
		t.Errorf("contents %q of %d files", out.Contents, len(files))
	}
	if _, err := os.Stat(filepath.Join(dir, "executed")); err == nil {
		t.Error("a program that others can write was executed")
	}
}
