package report

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/internal/term"
)

// Files is the content of the files of a report by name.
type Files map[string][]byte

// Add adds a file that is not empty. If err is not nil, NAME.err says why NAME is not whole.
func (files Files) Add(name string, data []byte, err error) {
	if len(data) > 0 {
		files[name] = data
	}
	if err != nil {
		files[name+".err"] = []byte(err.Error() + "\n")
	}
}

func (files Files) addJSON(name string, v any, err error) {
	var data bytes.Buffer
	if err == nil {
		err = term.JSON(&data, v)
	}
	files.Add(name, data.Bytes(), err)
}

// Write writes a new archive, which only root can read.
func (files Files) Write(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		h := tar.Header{Name: path.Join("nvidia-shim", file), Mode: 0o600, Size: int64(len(files[file])), ModTime: time.Now()}
		if err = cmp.Or(err, w.WriteHeader(&h)); err == nil {
			_, err = w.Write(files[file])
		}
	}
	if err = cmp.Or(err, w.Close(), z.Close(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
