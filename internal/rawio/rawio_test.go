package rawio

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadWhatWasWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	want := bytes.Repeat([]byte("0123456789"), 5000)
	fd, err := Open(name, unix.O_RDWR)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("descriptor %d, %v", fd, err)
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if fd, err = Open(name, unix.O_RDWR); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := Write(fd, want); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ size, limit, want int }{
		{0, 1 << 20, len(want)}, {len(want), len(want), len(want)}, {1 << 20, 100, 100}, {10, 0, 0}, {len(want), len(want) + 1, len(want)},
	} {
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			t.Fatal(err)
		}
		got, err := Read(fd, test.size, test.limit)
		if err != nil || !bytes.Equal(got, want[:test.want]) {
			t.Errorf("size %d, limit %d: %d bytes, %v, want %d", test.size, test.limit, len(got), err, test.want)
		}
	}
	if _, err := Read(-1, 1, 1); !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: %v", err)
	}
}
