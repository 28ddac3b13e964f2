package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		name  string
		words []string
		want  []string // in order
		some  bool     // want is a part
	}{
		{"nothing is typed", []string{""}, []string{"info", "plan", "check"}, true},
		{"the beginning of a command", []string{"in"}, []string{"info", "install"}, false},
		{"a command after a flag that goes everywhere", []string{"--json", "pla"}, []string{"plan"}, false},
		{"a command after a flag with a value", []string{"--config", "info", "pla"}, []string{"plan"}, false},
		{"a hidden command", []string{"complet"}, []string{"completion"}, false},
		{"a command of a command", []string{"probe", "p"}, []string{"pod-resources"}, false},
		{"flags", []string{"plan", "--"}, []string{"--annotation", "--config", "--env", "--help", "--json", "--privileged"}, true},
		{"the beginning of a flag", []string{"install", "--fr"}, []string{"--from", "--from-toolkit"}, false},
		{"flags of a command that has no commands", []string{"uninstall", ""}, []string{"--keep-programs"}, true},
		{"the value of a flag", []string{"install", "--target", ""}, []string{"containerd", "k3s", "rke2", "kind", "docker"}, false},
		{"the beginning of a value", []string{"run-args", "--for", "p"}, []string{"podman"}, false},
		{"a value behind =", []string{"install", "--target=k"}, []string{"--target=k3s", "--target=kind"}, false},
		{"a value behind = as bash has it", []string{"install", "--target", "=", "k"}, []string{"k3s", "kind"}, false},
		{"nothing behind = as bash has it", []string{"run-args", "--for", "="}, []string{"docker", "podman", "nerdctl", "ctr"}, false},
		{"the value of a flag that may be anything", []string{"plan", "--env", ""}, nil, false},
		{"after a value", []string{"run-args", "--for", "ctr", "--dev"}, []string{"--devices"}, false},
		{"a flag whose value is optional", []string{"install", "--from-toolkit", "--dr"}, []string{"--dry-run"}, false},
		{"after --", []string{"--", "pl"}, nil, false},
		{"an unknown flag", []string{"plan", "--nothing="}, nil, false},
		{"no word", nil, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, w := range candidates(newApp(io.Discard, io.Discard), c.words) {
				got = append(got, w.text)
			}
			if !c.some && !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			for _, w := range c.want {
				if !slices.Contains(got, w) {
					t.Errorf("no %q in %q", w, got)
				}
			}
		})
	}
}

// installed is a directory with this program under its own name, see TestMain.
func installed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "nvidia-shimctl")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skipf("bash is missing: %v", err)
	}
	dir := installed(t)
	complete := func(words ...string) string {
		t.Helper()
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = shellQuote(w)
		}
		script := `source <(nvidia-shimctl completion bash) && complete -p nvidia-shimctl >/dev/null && COMP_WORDS=(nvidia-shimctl ` +
			strings.Join(quoted, " ") + `) && COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )) && _nvidia_shimctl && echo "${COMPREPLY[*]}"`
		cmd := exec.Command(bash, "--norc", "--noprofile", "-euc", script)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"uni"}, "uninstall"},
		{[]string{"install", "--target", "k"}, "k3s kind"},
		{[]string{"install", "--target", "=", "k"}, "k3s kind"},
		{[]string{"run-args", "--for", ""}, "docker podman nerdctl ctr"},
		{[]string{"nothing", "--here", "at"}, ""},
		// What is being typed is not executed.
		{[]string{"plan", "--env", "$(touch here)", "--priv"}, "--privileged"},
		{[]string{"plan", "`touch here`", "--priv"}, "--privileged"},
	} {
		if got := complete(c.words...); got != c.want {
			t.Errorf("%q: got %q, want %q", c.words, got, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "here")); err == nil {
		t.Error("a command substitution of the line was executed")
	}
}

func TestFishCompletes(t *testing.T) {
	fish, err := exec.LookPath("fish")
	if err != nil {
		t.Skipf("fish is missing: install the package fish: %v", err)
	}
	dir := installed(t)
	for line, want := range map[string]string{"nvidia-shimctl uni": "uninstall", "nvidia-shimctl install --target ki": "kind", "nvidia-shimctl install --target=ki": "--target=kind"} {
		cmd := exec.Command(fish, "--no-config", "-c", "nvidia-shimctl completion fish | source; complete -C "+shellQuote(line))
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		if word, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\t"); err != nil || word != want {
			t.Errorf("%q: %v: %q, want %q", line, err, out, want)
		}
	}
}

func TestZshCompletes(t *testing.T) {
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skipf("zsh is missing: install the package zsh: %v", err)
	}
	dir := installed(t)
	// The function, with zsh's own completion functions replaced by what tells.
	script := `compdef() { :; }; _describe() { print -l -- "${(@P)2}"; }; _files() { print files; }
source <(nvidia-shimctl completion zsh); words=(nvidia-shimctl install --target ki); CURRENT=$#words; _nvidia-shimctl
words=(nvidia-shimctl plan --env '$(touch here)'); CURRENT=$#words; _nvidia-shimctl`
	cmd := exec.Command(zsh, "-f", "-c", script)
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "kind:\nfiles\n" {
		t.Errorf("%v: %q", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "here")); err == nil {
		t.Error("a command substitution of the line was executed")
	}
}
