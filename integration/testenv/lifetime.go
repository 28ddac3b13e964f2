package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

// Lifetime implements the methods of a test that this package uses, for a command and for TestMain,
// whose environment outlives every test. The embedded nil value stands for the methods that are not
// used.
type Lifetime struct {
	testing.TB
	cleanups []func()
	failed   bool
	ending   sync.Mutex
}

// failure is the value of the panic by which Fatal ends the function, so that cleanups run.
type failure struct{ message string }

func (l *Lifetime) Helper()                   {}
func (l *Lifetime) Context() context.Context  { return context.Background() }
func (l *Lifetime) Failed() bool              { return l.failed }
func (l *Lifetime) Cleanup(f func())          { l.cleanups = append(l.cleanups, f) }
func (l *Lifetime) Log(args ...any)           { fmt.Fprintln(os.Stderr, args...) }
func (l *Lifetime) Logf(f string, a ...any)   { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (l *Lifetime) Error(args ...any)         { l.failed = true; l.Log(args...) }
func (l *Lifetime) Errorf(f string, a ...any) { l.failed = true; l.Logf(f, a...) }
func (l *Lifetime) Fatal(args ...any)         { l.failed = true; panic(failure{fmt.Sprint(args...)}) }
func (l *Lifetime) Fatalf(f string, a ...any) { l.Fatal(fmt.Sprintf(f, a...)) }

// Run calls fn, in a temporary directory which it must leave empty, and then the functions that it
// registered with Cleanup, in reverse order.
func (l *Lifetime) Run(fn func() error) error {
	remove, err := makeTemp()
	if err != nil {
		return err
	}
	l.Cleanup(func() {
		if err := remove(); err != nil {
			l.Error(err)
		}
	})
	err = guard(fn)
	l.failed = l.failed || err != nil
	if e := l.End(); e != nil && err == nil {
		err = e
	}
	if err == nil && l.failed {
		err = errors.New("what was started did not end as it should")
	}
	return err
}

// End calls the functions that were registered with Cleanup. A second call waits for the first.
func (l *Lifetime) End() (err error) {
	l.ending.Lock()
	defer l.ending.Unlock()
	for len(l.cleanups) > 0 {
		last := l.cleanups[len(l.cleanups)-1]
		l.cleanups = l.cleanups[:len(l.cleanups)-1]
		if e := guard(func() error { last(); return nil }); e != nil && err == nil {
			err = e
		}
	}
	return err
}

// EndOnSignal makes SIGINT and SIGTERM run the cleanups and end the process.
func (l *Lifetime) EndOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		l.Log("FAIL:", <-signals)
		_ = l.End()
		os.Exit(1)
	}()
}

// guard turns Fatal into an error.
func guard(fn func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = errors.New(p.message)
		default:
			panic(p)
		}
	}()
	return fn()
}
