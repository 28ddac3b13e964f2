package simhost

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

// Tree is a mount namespace.
type Tree struct {
	// Root is its root directory, as seen by this process.
	Root string
	// Enter is the command that runs another command in it.
	Enter []string
}

// NewTree makes a mount namespace in which /etc, /usr/local and /var/lib are private, for what a
// user installs.
func NewTree(t testing.TB) Tree {
	return NewNamespace(t, `for d in etc usr/local var/lib; do
		mkdir -p $1/$d/upper $1/$d/work
		mount -t overlay -o lowerdir=/$d,upperdir=$1/$d/upper,workdir=$1/$d/work overlay /$d
	done`, t.TempDir())
}

// NewNamespace makes a mount namespace that ends with the test. A script makes its mounts from the
// content of dir, its $1.
func NewNamespace(t testing.TB, script, dir string) Tree {
	t.Helper()
	// cat answers when it has been executed: until then the process is not what it will be.
	script += "\nexec cat"
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", script, "sh", dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.WriteString(in, "ready\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("make a mount namespace: %q, %v", line, err)
	}
	return Tree{
		Root:  fmt.Sprintf("/proc/%d/root", cmd.Process.Pid),
		Enter: []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", cmd.Process.Pid), "--"},
	}
}

// Type runs a command line in the repository, as a user of the tree. It must succeed.
func (tree Tree) Type(t testing.TB, env []string, line string) string {
	t.Helper()
	dir, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tree.Enter[0], append(tree.Enter[1:len(tree.Enter):len(tree.Enter)], "/bin/sh", "-c", "cd "+dir+" && "+line)...)
	cmd.Env = env
	r, err := testenv.Output(time.Minute, cmd)
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("%s: %v, exit status %d\n%s%s", line, err, r.ExitCode, r.Output, r.Error)
	}
	return r.Output
}

// repository is the path of the repository from a test package.
const repository = "../.."

var (
	console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	typed   = regexp.MustCompile(`(?m)^# (.*)$`)
)

// Commands returns the commands that a page tells root to type between two texts.
func Commands(t testing.TB, page, from, to string) (list []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(data), from)
	if text, _, _ = strings.Cut(text, to); !ok {
		t.Fatalf("%s has no %q", page, from)
	}
	for _, block := range console.FindAllStringSubmatch(text, -1) {
		for _, m := range typed.FindAllStringSubmatch(block[1], -1) {
			list = append(list, m[1])
		}
	}
	return list
}
