package main

import (
	"fmt"
	"os"
	"testing"
)

// harness is what testenv wants of a test, for a command. The embedded nil value
// stands for the methods that an environment never calls.
type harness struct {
	testing.TB
	cleanups []func()
	failed   bool
}

// failure is what Fatal ends the command with, by panic, so that cleanups run.
type failure struct{ message string }

func (h *harness) Helper()                   {}
func (h *harness) Failed() bool              { return h.failed }
func (h *harness) Cleanup(f func())          { h.cleanups = append(h.cleanups, f) }
func (h *harness) Log(args ...any)           { fmt.Fprintln(os.Stderr, args...) }
func (h *harness) Logf(f string, a ...any)   { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (h *harness) Error(args ...any)         { h.failed = true; h.Log(args...) }
func (h *harness) Errorf(f string, a ...any) { h.failed = true; h.Logf(f, a...) }
func (h *harness) Fatal(args ...any)         { h.failed = true; panic(failure{fmt.Sprint(args...)}) }
func (h *harness) Fatalf(f string, a ...any) { h.Fatal(fmt.Sprintf(f, a...)) }

// run calls fn and then what it registered with Cleanup, the last first.
func (h *harness) run(fn func() error) (err error) {
	defer func() {
		for len(h.cleanups) > 0 {
			last := h.cleanups[len(h.cleanups)-1]
			h.cleanups = h.cleanups[:len(h.cleanups)-1]
			if e := guard(func() error { last(); return nil }); e != nil && err == nil {
				err = e
			}
		}
		if err == nil && h.failed {
			err = fmt.Errorf("something was left behind")
		}
	}()
	err = guard(fn)
	h.failed = h.failed || err != nil
	return err
}

// guard turns Fatal into an error.
func guard(fn func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s", p.message)
		default:
			panic(p)
		}
	}()
	return fn()
}
