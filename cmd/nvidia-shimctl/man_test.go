package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What man itself makes of the pages: no warning, and every command and flag in it.
func TestManReadsThePages(t *testing.T) {
	man, err := exec.LookPath("man")
	if err != nil {
		t.Skipf("man is missing: install the package man-db: %v", err)
	}
	dir := t.TempDir()
	if status, _, errs := ctl(t, "man", "--dir", dir); status != 0 {
		t.Fatal(errs)
	}
	app := newApp(io.Discard, io.Discard)
	for _, c := range app.Commands {
		name := filepath.Join(dir, "nvidia-shimctl-"+c.Name+".8")
		if _, err := os.Stat(name); (err == nil) == c.Hidden {
			t.Errorf("%s: %v", c.Name, err)
			continue
		} else if c.Hidden {
			continue
		}
		text := rendered(t, man, name)
		want := []string{"nvidia-shimctl-" + c.Name + " - " + c.Usage, "EXIT STATUS", "nvidia-shimctl(8)"}
		flags(c, func(_, flag string) { want = append(want, "--"+flag) })
		for _, s := range want {
			if !strings.Contains(text, s) {
				t.Errorf("%s: no %q in\n%s", c.Name, s, text)
			}
		}
	}
	text := rendered(t, man, filepath.Join(dir, "nvidia-shimctl.8"))
	for _, s := range []string{"nvidia-shimctl-plan(8)", "--config FILE", "NVIDIA_SHIM_CONFIG"} {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in\n%s", s, text)
		}
	}
	// So that the test can fail.
	broken := filepath.Join(dir, "broken.8")
	write(t, broken, ".TH A 8\n.SH NAME\n.nothing at all\n", 0o644)
	if _, warnings := render(t, man, broken); warnings == "" {
		t.Error("man has no warning for anything")
	}
}

func rendered(t *testing.T, man, name string) string {
	t.Helper()
	text, warnings := render(t, man, name)
	if warnings != "" {
		t.Errorf("%s: %s", filepath.Base(name), warnings)
	}
	return text
}

func render(t *testing.T, man, name string) (text, warnings string) {
	t.Helper()
	cmd := exec.Command(man, "--warnings=w", "-l", name)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "MANWIDTH=500", "LC_ALL=C", "MAN_KEEP_FORMATTING="}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("man -l %s: %v: %s", name, err, errs.String())
	}
	return out.String(), errs.String()
}

func TestTextIsNoRequestOfTroff(t *testing.T) {
	for in, want := range map[string]string{".so /etc/passwd": `\&.so /etc/passwd`, "'x": `\&'x`, `a\fB--b`: `a\efB\-\-b`} {
		if got := roff(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	for _, args := range [][]string{{"man", "nothing"}, {"man", "--dir", "/x", "plan"}} {
		if status, _, errs := ctl(t, args...); status != 2 {
			t.Errorf("%q: %d %s", args, status, errs)
		}
	}
	if _, all, _ := ctl(t, "man"); !strings.HasPrefix(all, `.TH "NVIDIA\-SHIMCTL" 8`) {
		t.Errorf("%.80q", all)
	}
	if _, one, _ := ctl(t, "man", "plan"); !strings.Contains(one, "\n.SH \"OPTIONS\"\n") {
		t.Errorf("%.300q", one)
	}
}
