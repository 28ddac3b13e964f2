package rawio

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Open opens a file as open(2) does; it is closed on exec. The error is an *os.PathError.
func Open(name string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// Read reads a file from where it is to its end, but no more than limit bytes. It expects about size
// bytes.
func Read(fd, size, limit int) (data []byte, err error) {
	data = make([]byte, 0, min(size, limit)+1)
	for len(data) < limit {
		data = slices.Grow(data, 1)
		n, err := unix.Read(fd, data[len(data):min(cap(data), limit)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return data, err
		}
		data = data[:len(data)+n]
	}
	return data, nil
}

// Write writes all of data to a file.
func Write(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}
