package testenv

import (
	"os/exec"
	"testing"
)

// A process has a command line at every moment: in the middle of execve, too.
func TestACommandLineIsNeverEmpty(t *testing.T) {
	for range 200 {
		cmd := exec.Command("sh", "-c", "exec sleep 60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		command := ""
		for command != "sleep 60" {
			if command = commandLine(cmd.Process.Pid); command == "" {
				t.Error("a running process has no command line")
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
