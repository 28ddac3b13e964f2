package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/console"
	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/gpuinject"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simdriver/sim"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/hostinfo"
)

// screen runs the tool on a terminal of 80 columns.
func screen(t *testing.T, args ...string) string {
	t.Helper()
	master, name, err := console.NewPty()
	testtree.Check(t, err)
	testtree.Check(t, master.Resize(console.WinSize{Width: 80, Height: 24}))
	slave, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	testtree.Check(t, err)
	all := make(chan string, 1)
	go func() {
		data, _ := io.ReadAll(master) // ends with EIO when the other side is closed
		master.Close()
		all <- strings.ReplaceAll(string(data), "\r\n", "\n")
	}()
	var errs bytes.Buffer
	code := run(t.Context(), append([]string{"nvidia-shimctl"}, args...), slave, &errs)
	slave.Close()
	out := <-all
	if code == 2 || out == "" {
		t.Fatalf("%q: status %d, %s%s", args, code, out, &errs)
	}
	return out
}

// Names of pods, containers and GPUs may be long. The screen shows everything that a pipe gets.
func TestEveryTableFits80Columns(t *testing.T) {
	d := sim.New(t, sim.Options{GPUs: 8, MIG: []sim.MIGDevice{{GPU: 1, GI: 9}, {GPU: 1, GI: 10, CI: 1}}, Excluded: []int{7}, Models: map[int]sim.Model{
		0: {Name: "NVIDIA RTX PRO 6000 Blackwell Server Edition"}, 2: {Name: "NVIDIA H100 80GB HBM3"},
	}})
	t.Setenv("TERM", "dumb")
	const namespace, pod = "machine-learning-platform", "llama-3-70b-instruct-worker-0-7d9f8c6b5d-x2x9z"
	state := stateDir(t)
	place := func(id, who, gpus string) string {
		dir := filepath.Join(state, "io.containerd.runtime.v2.task/k8s.io", id)
		write(t, filepath.Join(dir, gpuinject.RecordName), fmt.Sprintf(`{"gpu": true, "reason": "NVIDIA_VISIBLE_DEVICES=\"all\"", "container": {"id": %q, "namespace": "k8s.io"%s}, "gpus": [%s], "suspends_gpu": true}`, id, who, gpus))
		return dir
	}
	var all []string
	for _, g := range d.GPUs[2:7] {
		all = append(all, fmt.Sprintf(`{"uuid": %q, "pci": %q}`, g.UUID, g.BusID))
	}
	id := strings.Repeat("0123456789abcdef", 4)
	inPod := fmt.Sprintf(`, "pod_namespace": %q, "pod": %q, "name": "trainer"`, namespace, pod)
	suspended := place(id, inPod, strings.Join(all, ","))
	write(t, filepath.Join(suspended, gpuinject.SuspendedName), "85899345920")
	write(t, filepath.Join(suspended, "config.json"), `{"root": {"path": "rootfs"}}`)
	place("a-container-of-ctr-whose-name-its-user-has-made-as-long-as-names-can-be", "", all[0])
	place("short", "", all[1])
	testtree.Check(t, d.Place(sim.Process{UUID: d.GPUs[2].UUID, PID: os.Getpid(), Memory: 85899345920}))
	root, install := toolkitTree(t, "operator.toml", "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml")
	for _, tc := range []struct{ args, want []string }{
		{[]string{"info"}, nil},
		{[]string{"info", "--files"}, nil},
		{[]string{"status"}, []string{namespace + "/" + pod + "/trainer", "ctr-whose-name", id[:12], "NVIDIA RTX PRO 6000 Blackwell Server Edition", "SINCE"}},
		{[]string{"plan", "--container", id}, nil},
		{[]string{"plan", "-e", "NVIDIA_VISIBLE_DEVICES=2,1:0"}, nil},
		{[]string{"plan", "-e", "NVIDIA_VISIBLE_DEVICES=9"}, nil},
		{[]string{"check", "--target", "rke2"}, []string{"no runtime handler"}},
		{[]string{"prepare", "--dry-run"}, nil},
		{append(install, "--from-toolkit", "--dry-run"), nil},
		{[]string{"uninstall", "--root", root, "--dry-run"}, nil},
	} {
		args := append([]string{"--config", d.ConfigPath}, tc.args...)
		out := screen(t, args...)
		for line := range strings.Lines(out) {
			line = strings.NewReplacer(d.DevRoot, "", d.Root, "", d.Dir, "", "\n", "").Replace(line) // real paths are shorter
			patch := strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-")
			// The path of a view is longer than the screen.
			path := strings.HasPrefix(strings.TrimSpace(line), "/state/view/")
			if n := utf8.RuneCountInString(line); n > 80 && !patch && !path {
				t.Errorf("%q: %d columns: %s", tc.args, n, line)
			}
		}
		if tc.want == nil { // other tests do not change what it shows
			_, piped, _ := ctl(t, args...)
			tc.want = append(tc.want, strings.Fields(piped)...)
		}
		contains(t, out, tc.want...)
	}
}

// A healthy host with eight GPUs fits a terminal of 24 lines, however they are partitioned.
func TestInfoIsOneScreen(t *testing.T) {
	t.Setenv("TERM", "dumb")
	some := []sim.MIGDevice{{GPU: 1, GI: 9}, {GPU: 1, GI: 10, CI: 1}}
	var every []sim.MIGDevice
	for i := range 56 {
		every = append(every, sim.MIGDevice{GPU: i / 7, GI: 7 + i%7})
	}
	for name, options := range map[string]sim.Options{
		"some MIG devices":  {GPUs: 8, MIG: some, Excluded: []int{7}},
		"every MIG device":  {GPUs: 8, MIG: every},
		"twelve of one GPU": {GPUs: 8, MIG: every[:12]},
	} {
		t.Run(name, func(t *testing.T) {
			d := sim.New(t, options)
			out := screen(t, "--config", d.ConfigPath, "info")
			if n := strings.Count(out, "\n"); n > 24 {
				t.Errorf("%d lines:\n%s", n, out)
			}
			var info hostinfo.Info
			decode(t, fine(t, "--config", d.ConfigPath, "--json", "info"), &info)
			if len(info.MIG) != len(options.MIG) {
				t.Errorf("%d MIG devices as JSON", len(info.MIG))
			}
			if len(info.MIG) == 56 {
				contains(t, out, "\n7    7 × "+info.MIG[55].Profile+"\n", "nvidia-shimctl --json info")
			} else {
				contains(t, out, info.MIG[1].UUID)
			}
		})
	}
}

// The help is complete.
func TestHelpFits80Columns(t *testing.T) {
	all := newApp(io.Discard, io.Discard)
	testtree.Check(t, all.Run(t.Context(), []string{"nvidia-shimctl"})) // adds the command completion
	testtree.Check(t, all.Walk(func(c *cli.Command) error {
		help := fine(t, append(strings.Fields(c.FullName())[1:], "--help")...)
		for line := range strings.Lines(help) {
			if n := utf8.RuneCountInString(line) - 1; n > 80 || strings.HasSuffix(line, " \n") {
				t.Errorf("%s: %d columns: %q", c.FullName(), n, line)
			}
		}
		words := strings.Join(strings.Fields(help), " ")
		for _, f := range c.VisibleFlags() {
			usage := f.(cli.DocGenerationFlag).GetUsage()
			contains(t, words, "--"+f.Names()[0], strings.ReplaceAll(usage, "`", ""))
		}
		for _, sub := range c.VisibleCommands() {
			contains(t, words, sub.Name+" "+sub.Usage)
		}
		return nil
	}))
}
