package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// files are those of the image, by the names that build.sh gives them.
var files = []struct {
	from, to string
	mode     int64
}{
	{"containerd-shim-nvidia-v2", "usr/bin/", 0o755},
	{"nvidia-shimctl", "usr/bin/", 0o755},
	{"nvidia-shim-nvml", "usr/bin/", 0o755},
	{"LICENSE", "usr/share/doc/containerd-shim-nvidia/", 0o644},
	{"licenses.gz", "usr/share/doc/containerd-shim-nvidia/", 0o644},
}

func main() {
	if len(os.Args) < 6 {
		log.Fatal("usage: image OUTDIR NAME VERSION REVISION ARCH=DIR...")
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:]); err != nil {
		log.Fatal(err)
	}
}

func write(out, name, version, revision string, arches []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	created := time.Unix(seconds, 0).UTC()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, a := range arches {
		arch, dir, _ := strings.Cut(a, "=")
		image, err := build(dir, arch, version, revision, created)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	dir := filepath.Join(out, filepath.Base(name))
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		// By the first annotation containerd names what it imports, by the second other programs.
		err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name": name + ":" + version, "org.opencontainers.image.ref.name": version,
		}))
	}
	if err != nil {
		return err
	}
	file, err := os.Create(dir + "_" + version + ".tar")
	if err != nil {
		return err
	}
	if err := archive(file, dir, created); err != nil {
		return err
	}
	return file.Close()
}

func build(dir, arch, version, revision string, created time.Time) (v1.Image, error) {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	made := map[string]bool{}
	for _, f := range files {
		for i, c := range f.to {
			if parent := f.to[:i+1]; c == '/' && !made[parent] {
				made[parent] = true
				if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o755, ModTime: created}); err != nil {
					return nil, err
				}
			}
		}
		if err := add(w, filepath.Join(dir, f.from), f.to+f.from, f.mode, created); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(text.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1),
		mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "packaging/image"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: created}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/nvidia-shimctl", "node"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "nvidia-shim-node", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version": version, "org.opencontainers.image.revision": revision,
			"org.opencontainers.image.source": "https://github.com/containerd-shim-nvidia/containerd-shim-nvidia",
		},
	}
	return mutate.ConfigFile(image, config)
}

func add(w *tar.Writer, from, to string, mode int64, created time.Time) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: mode, Size: int64(len(data)), ModTime: created}); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// archive writes a layout as one file, which containerd imports.
func archive(out io.Writer, dir string, created time.Time) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		to, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		return add(w, name, to, 0o644, created)
	})
	if err != nil {
		return err
	}
	return w.Close()
}
