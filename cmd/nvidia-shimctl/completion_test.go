package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testtree"
)

// TestShellsComplete has each shell complete a line, which must not execute what is typed.
func TestShellsComplete(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	testtree.Check(t, err)
	if err := os.Symlink(self, filepath.Join(dir, "nvidia-shimctl")); err != nil {
		t.Fatal(err) // see TestMain
	}
	const bash = `source <(nvidia-shimctl completion bash); complete -p nvidia-shimctl >/dev/null
COMP_WORDS=(nvidia-shimctl plan '>' here --pri); COMP_CWORD=4; _nvidia_shimctl
COMP_WORDS=(nvidia-shimctl plan --env '$(touch here)' --pri); COMP_CWORD=4; _nvidia_shimctl; echo "${COMPREPLY[*]}"
COMP_WORDS=(nvidia-shimctl uni); COMP_CWORD=1; _nvidia_shimctl; echo "${COMPREPLY[*]}"`
	const zsh = `compdef() { :; }; _describe() { print -l -- "${(@P)2}"; }; _files() { print files; }
source <(nvidia-shimctl completion zsh); words=(nvidia-shimctl plan --env '$(touch here)' --pri); _nvidia-shimctl
words=(nvidia-shimctl uni); _nvidia-shimctl`
	const fish = `nvidia-shimctl completion fish | source; complete -C "nvidia-shimctl plan --env '\$(touch here)' --pri"
complete -C "nvidia-shimctl uni"`
	for _, shell := range [][]string{{"bash", "--norc", "--noprofile", "-uc", bash}, {"zsh", "-f", "-c", zsh}, {"fish", "--no-config", "-c", fish}} {
		t.Run(shell[0], func(t *testing.T) {
			if _, err := exec.LookPath(shell[0]); err != nil {
				t.Skipf("NOT TESTED: the package %s is not installed: %v", shell[0], err)
			}
			cmd := exec.Command(shell[0], shell[1:]...)
			cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir}
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			lines := strings.Split(string(out), "\n")
			if err != nil || !strings.HasPrefix(lines[0], "--privileged") || len(lines) < 2 || !strings.Contains(string(out), "\nuninstall") {
				t.Errorf("%v: %q", err, out)
			}
			if _, err := os.Stat(filepath.Join(dir, "here")); err == nil {
				t.Error("a part of the line was executed")
			}
		})
	}
}

func TestTheManualPage(t *testing.T) {
	man, err := exec.LookPath("man")
	if err != nil {
		t.Skipf("NOT TESTED: the package man-db is not installed: %v", err)
	}
	status, page, errs := ctl(t, "man")
	if status != 0 {
		t.Fatal(errs)
	}
	name := testtree.NewRoot(t).Write("nvidia-shimctl.8", page)
	cmd := exec.Command(man, "--warnings=w", "-l", name)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "MANWIDTH=500", "LC_ALL=C", "MAN_KEEP_FORMATTING="}
	var warnings bytes.Buffer
	cmd.Stderr = &warnings
	text, err := cmd.Output()
	if err != nil || warnings.Len() > 0 {
		t.Errorf("man: %v %s", err, warnings.String())
	}
	for _, c := range newApp(io.Discard, io.Discard).Commands {
		if strings.Contains(string(text), "\n"+c.Name+"\n") == c.Hidden {
			t.Errorf("%s: hidden %v in\n%s", c.Name, c.Hidden, text)
		}
		if !c.Hidden {
			flags(c, func(_, flag string) {
				if !strings.Contains(string(text), "--"+flag) {
					t.Errorf("no --%s", flag)
				}
			})
		}
	}
}
