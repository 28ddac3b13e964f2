package probe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/trusted"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// socketWait bounds the wait for the kubelet's socket.
const socketWait = time.Second

// maxOutput bounds what the process may print, in bytes.
const maxOutput = 4 << 20

// Start starts a command and returns the function that waits for its end. At the limit that
// function kills the process and returns an error.
type Start func(cmd *exec.Cmd) (wait func(limit time.Duration) (status int, err error), err error)

// StartProcess is the Start for a program that, unlike the shim, does not reap every child.
func StartProcess(cmd *exec.Cmd) (wait func(time.Duration) (int, error), err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the status is in ProcessState
		close(done)
	}()
	return func(limit time.Duration) (int, error) {
		select {
		case <-done:
			return cmd.ProcessState.ExitCode(), nil
		case <-time.After(limit):
			return 0, errors.Join(errors.New("timeout"), cmd.Process.Kill())
		}
	}, nil
}

// Ask runs the program, nvidia-shimctl, asks the questions and returns the answers. If the program
// is not found or does not answer, that is the error of every question.
func Ask(program func() (path string, err error), start Start, q Questions) Answers {
	noKubelet := q.Pod != nil && isMissing(q.Pod.Socket)
	if noKubelet {
		q.Pod = nil
	}
	q.Timeout = cmp.Or(q.Timeout, NVMLTimeout)
	var a Answers
	if q.Facts || q.Live || q.Pod != nil || q.Suspend != nil || q.Resume != nil || q.Programs != nil || q.AsksMemory() {
		var err error
		if a, err = ask(program, start, q); err != nil {
			a = Answers{FactsError: err.Error(), LiveError: err.Error(), PodError: err.Error(), MoveError: err.Error(), VersionsError: err.Error(), MemoryError: err.Error()}
		}
	}
	a.NoKubelet = noKubelet
	return a
}

// isMissing reports whether there is still no socket after a second: a starting kubelet removes its
// socket before it listens.
func isMissing(socket string) bool {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
		if time.Since(start) > socketWait {
			return true
		}
	}
}

// ask runs the program with an empty environment. A process that hangs in the kernel ignores
// SIGKILL: it is abandoned, with the goroutine that waits for it. There is at most one such process
// on a host: the next one finds the lock taken and gives up. An answer counts even if the process
// cannot exit.
func ask(program func() (string, error), start Start, q Questions) (a Answers, err error) {
	q.Wait = q.Ready != nil
	stderr := FirstOutput{Max: maxOutput}
	cmd, stdout, begun, err := command(program, q, &stderr)
	if err != nil {
		return a, err
	}
	defer stdout.Close()
	defer begun()
	theirs, ready, err := os.Pipe()
	if err != nil {
		return a, err
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{theirs} // ReadyFD
	if q.Cgroup != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, q.Cgroup) // CgroupFD
	}
	limit := q.Timeout + grace
	if q.Pod != nil {
		limit += KubeletTimeout
	}
	deadline := time.Now().Add(limit)
	wait, err := start(cmd)
	begun()
	theirs.Close()
	if err != nil {
		return a, err
	}
	if err := stdout.SetReadDeadline(deadline); err != nil {
		return a, err
	}
	output := &io.LimitedReader{R: stdout, N: maxOutput} // guard: probe: size of the answer
	a, refused, decoded := readAnswers(q, output, ready)
	ready.Close()  // ends a process that waits
	stdout.Close() // makes a process that still writes fail
	status, err := wait(time.Until(deadline))
	switch {
	case refused != nil:
		return a, refused
	case decoded == nil:
		return a, nil
	case err != nil:
		return a, fmt.Errorf("%s did not answer within %s", version.Ctl, limit)
	case output.N == 0:
		return a, fmt.Errorf("%s answered more than %d bytes", version.Ctl, maxOutput)
	case status == 0:
		return a, fmt.Errorf("%s did not answer in JSON: %w", version.Ctl, decoded)
	}
	return a, failure(status, string(stderr.Text))
}

// command returns the command that runs the program to ask q, and the pipe with its answers, which
// the caller closes. The caller calls begun when the command has started, or has not.
func command(program func() (string, error), q Questions, stderr io.Writer) (cmd *exec.Cmd, answers *os.File, begun func(), err error) {
	path, err := program()
	if err != nil {
		return nil, nil, nil, err
	}
	stdin, err := QuestionsFile(q)
	if err != nil {
		return nil, nil, nil, err
	}
	answers, stdout, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return nil, nil, nil, err
	}
	cmd = exec.Command(path, "probe", "--questions")
	cmd.Args[0] = version.Ctl          // as shown in process lists
	cmd.Env, cmd.Dir = []string{}, "/" // guard: probe: empty environment
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd, answers, func() { stdin.Close(); stdout.Close() }, nil
}

// failure returns the error of a program that has failed: its first line.
func failure(status int, stderr string) error {
	if line, _, _ := strings.Cut(strings.TrimSpace(stderr), "\n"); line != "" {
		return errors.New(strings.TrimPrefix(line[:min(len(line), 1024)], version.Ctl+": "))
	}
	return fmt.Errorf("%s ended with status %d and no message", version.Ctl, status)
}

// readAnswers reads the answers of the program, and calls q.Ready, whose error is refused, when the
// program asks for that. decoded is not nil if there is no answer.
func readAnswers(q Questions, output io.Reader, ready io.Writer) (a Answers, refused, decoded error) {
	decoder := json.NewDecoder(output)
	if decoded = decoder.Decode(&a); decoded != nil || !a.Ready || !q.Wait {
		return a, nil, decoded
	}
	if refused = q.Ready(); refused != nil {
		return Answers{}, refused, nil
	}
	if _, decoded = ready.Write([]byte{1}); decoded != nil {
		return Answers{}, nil, decoded
	}
	a = Answers{}
	decoded = decoder.Decode(&a)
	return a, nil, decoded
}

// QuestionsFile returns a file in memory, open at its beginning, that contains the questions as
// JSON. In an argument, which has at most 128 KiB (MAX_ARG_STRLEN), the ids of 4,000 processes do
// not fit.
func QuestionsFile(q Questions) (*os.File, error) {
	fd, err := unix.MemfdCreate("questions", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("questions", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "questions")
	if err = json.NewEncoder(f).Encode(q); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// maxQuestions bounds the questions, in bytes: they hold some tens for each process.
const maxQuestions = 64 << 20

// ReadQuestions reads the questions from the standard input of the program.
func ReadQuestions(stdin io.Reader) (q Questions, err error) {
	if err = json.NewDecoder(io.LimitReader(stdin, maxQuestions)).Decode(&q); err != nil {
		err = fmt.Errorf("questions: %w", err)
	}
	return q, err
}

// FirstOutput keeps the first Max bytes that are written to it and never fails.
type FirstOutput struct {
	Max  int
	Text []byte
}

func (f *FirstOutput) Write(p []byte) (int, error) {
	f.Text = append(f.Text, p[:min(len(p), f.Max-len(f.Text))]...) // guard: probe: size of the messages
	return len(p), nil
}

// Beside returns the nvidia-shimctl beside the running executable.
func Beside() (string, error) { return besideSelf(version.Ctl) }

// NVMLProgram returns the program beside the running executable that can load NVML.
func NVMLProgram() (string, error) { return besideSelf(version.NVML) }

// besideSelf returns a program beside the running executable, if only root can have put it there.
func besideSelf(name string) (string, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", err
	}
	// After an upgrade by rename the name of the running file ends in " (deleted)".
	path := filepath.Join(filepath.Dir(strings.TrimSuffix(self, " (deleted)")), name)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", fmt.Errorf("%s is not beside the shim: install it at %s: %w", name, path, err)
	}
	if err := trusted.File(&st); err != nil { // guard: root's files: probe
		return "", fmt.Errorf("%s %w", path, err)
	}
	return path, nil
}
