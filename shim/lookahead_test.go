package shim

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestOnlyTheFirstCreateGetsWhatWasSeenAhead(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, _ := lookAhead(context.Background(), dir).Value(aheadKey{}).(*ahead)
	if a.take() == nil {
		t.Error("the first gets nothing")
	}
	if a.take() != nil {
		t.Error("the second gets something")
	}
	if (*ahead)(nil).take() != nil {
		t.Error("who did not look has seen something")
	}
}
