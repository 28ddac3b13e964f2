package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/version"
)

// Watch runs the program, which asks q.Watch of NVML, and calls each with every observation until
// ctx ends, each returns an error, or the program fails or is silent for longer than it may be. It
// returns why. Unless ctx has ended, it returns after the program has: a program that hangs in the
// kernel cannot be killed, and a second one would hang as well.
func Watch(ctx context.Context, program func() (string, error), q Questions, each func(Observation) error) error {
	q.Timeout = cmp.Or(q.Timeout, NVMLTimeout)
	stderr := FirstOutput{Max: maxOutput}
	cmd, stdout, begun, err := command(program, q, &stderr)
	if err != nil {
		return err
	}
	defer stdout.Close()
	cmd.WaitDelay = time.Second // for a process that it has started and that has its standard error
	err = cmd.Start()
	begun()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = stdout.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = readObservations(ctx, stdout, q, each)
	_ = cmd.Process.Kill()
	stdout.Close()
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-time.After(grace):
		}
		return ctx.Err()
	}
	if status := cmd.ProcessState.ExitCode(); errors.Is(err, io.EOF) && status > 0 {
		return failure(status, string(stderr.Text))
	}
	return err
}

// readObservations reads the answers of the program until one is an error.
func readObservations(ctx context.Context, stdout *os.File, q Questions, each func(Observation) error) error {
	output := &io.LimitedReader{R: stdout}
	answers := json.NewDecoder(output)
	silence := q.Watch + q.Timeout + grace
	for {
		output.N = maxOutput
		if err := stdout.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return err
		}
		if ctx.Err() != nil { // the deadline may have replaced that of the end
			return ctx.Err()
		}
		var a Answers
		switch err := answers.Decode(&a); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%s has not answered for %s", version.Ctl, silence)
		case err != nil:
			return fmt.Errorf("%s has ended its answers: %w", version.Ctl, err)
		case a.Observed == nil:
			return errors.New(cmp.Or(a.WatchError, version.Ctl+" does not know this question"))
		}
		if err := each(*a.Observed); err != nil {
			return err
		}
	}
}
