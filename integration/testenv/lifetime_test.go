package testenv_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

func TestALifetimeEndsAsATestDoes(t *testing.T) {
	for _, tc := range []struct {
		name, err string
		end       func(l *testenv.Lifetime) error
	}{
		{"well", "", func(*testenv.Lifetime) error { return nil }},
		{"with an error", "no node", func(*testenv.Lifetime) error { return errors.New("no node") }},
		{"by Fatal", "left: 2", func(l *testenv.Lifetime) error { l.Fatalf("left: %d", 2); return nil }},
		{"after Error", "did not end as it should", func(l *testenv.Lifetime) error { l.Error("something"); return nil }},
		{"with a cleanup that fails", "left a mount", func(l *testenv.Lifetime) error {
			l.Cleanup(func() { l.Fatal("left a mount") })
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var order []int
			l := &testenv.Lifetime{}
			err := l.Run(func() error {
				l.Cleanup(func() { order = append(order, 1) })
				l.Cleanup(func() { order = append(order, 2) })
				return tc.end(l)
			})
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) || l.Failed() != (err != nil) {
				t.Errorf("%v, failed %t", err, l.Failed())
			}
			if !slices.Equal(order, []int{2, 1}) {
				t.Errorf("cleanups ran in the order %v", order)
			}
		})
	}
}
