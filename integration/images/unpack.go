package images

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
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
	var top index
	if err := readJSON(imageTar, "index.json", &top); err != nil {
		return err
	}
	if len(top.Manifests) != 1 {
		return fmt.Errorf("%d manifests", len(top.Manifests))
	}
	var man manifest
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

func blob(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }

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
	tr := tar.NewReader(f)
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

func unpackLayer(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := File{
			Path: h.Name, Mode: uint32(h.Mode), UID: h.Uid, GID: h.Gid,
			Target: h.Linkname, Major: uint32(h.Devmajor), Minor: uint32(h.Devminor),
		}
		switch h.Typeflag {
		case tar.TypeDir:
			f.Kind = Directory
		case tar.TypeSymlink:
			f.Kind = SymbolicLink
		case tar.TypeLink:
			f.Kind = HardLink
		case tar.TypeChar:
			f.Kind = CharDevice
		case tar.TypeBlock:
			f.Kind = BlockDevice
		case tar.TypeFifo:
			f.Kind = NamedPipe
		default:
			if f.Data, err = io.ReadAll(tr); err != nil {
				return err
			}
		}
		if err := populate(root, f); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}
