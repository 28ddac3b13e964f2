package images

import (
	archive "archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Unpack writes the content of an image tar that this package made into an
// existing directory, for tests that give a container a directory instead of an
// image. It needs root.
func Unpack(imageTar, dir string) error {
	if err := unpack(imageTar, dir); err != nil {
		return fmt.Errorf("unpack %s: %w", imageTar, err)
	}
	return nil
}

func unpack(imageTar, dir string) error {
	var top ocispec.Index
	if err := readJSON(imageTar, "index.json", &top); err != nil {
		return err
	}
	if len(top.Manifests) != 1 {
		return fmt.Errorf("%d manifests", len(top.Manifests))
	}
	var man ocispec.Manifest
	if err := readJSON(imageTar, blob(top.Manifests[0]), &man); err != nil {
		return err
	}
	for _, l := range man.Layers {
		if err := withEntry(imageTar, blob(l), func(r io.Reader) error { return unpackLayer(r, dir) }); err != nil {
			return err
		}
	}
	return nil
}

func blob(d ocispec.Descriptor) string { return "blobs/sha256/" + d.Digest.Encoded() }

func readJSON(imageTar, name string, value any) error {
	return withEntry(imageTar, name, func(r io.Reader) error { return json.NewDecoder(r).Decode(value) })
}

// withEntry hands the content of one entry of a tar to use.
func withEntry(path, name string, use func(io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	tr := archive.NewReader(f)
	for {
		h, err := tr.Next()
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if h.Name == name {
			return use(tr)
		}
	}
}
