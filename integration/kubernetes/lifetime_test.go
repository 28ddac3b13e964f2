package kubernetes

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// lifetime is what testenv wants of a test, for TestMain: the node outlives every
// test. The embedded nil value stands for the methods that nothing here calls.
type lifetime struct {
	testing.TB
	cleanups []func()
	failed   bool
	ending   sync.Mutex
}

// failure is what Fatal ends the function with, by panic, so that cleanups run.
type failure struct{ message string }

func (l *lifetime) Helper()                   {}
func (l *lifetime) Failed() bool              { return l.failed }
func (l *lifetime) Cleanup(f func())          { l.cleanups = append(l.cleanups, f) }
func (l *lifetime) Log(args ...any)           { fmt.Fprintln(os.Stderr, args...) }
func (l *lifetime) Logf(f string, a ...any)   { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (l *lifetime) Error(args ...any)         { l.failed = true; l.Log(args...) }
func (l *lifetime) Errorf(f string, a ...any) { l.failed = true; l.Logf(f, a...) }
func (l *lifetime) Fatal(args ...any)         { l.failed = true; panic(failure{fmt.Sprint(args...)}) }
func (l *lifetime) Fatalf(f string, a ...any) { l.Fatal(fmt.Sprintf(f, a...)) }

// run calls fn and then what it registered with Cleanup, the last first.
func (l *lifetime) run(fn func() error) error {
	err := guard(fn)
	l.failed = l.failed || err != nil
	if e := l.end(); e != nil && err == nil {
		err = e
	}
	if err == nil && l.failed {
		err = fmt.Errorf("the node did not end as it should")
	}
	return err
}

// end calls what was registered with Cleanup. Where it is called twice, the second
// call waits for the first.
func (l *lifetime) end() (err error) {
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
