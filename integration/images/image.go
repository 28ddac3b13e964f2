package images

import (
	archive "archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Config is the image's configuration of its containers.
type Config = ocispec.ImageConfig

// Image describes an image, which Write turns into an OCI image layout.
type Image struct {
	// Name is the reference under which containerd knows the image.
	Name   string
	Config Config
	Layers []Layer
}

// annotateName is the annotation by which containerd names an image.
const annotateName = "io.containerd.image.name"

// Write writes the image as a tar of an OCI image layout. The same image gives the same bytes;
// layers are not compressed. An existing file is replaced by rename, so that no process reads an
// incomplete one.
func (m Image) Write(path string) error {
	if err := m.write(path); err != nil {
		return fmt.Errorf("write image %s: %w", m.Name, err)
	}
	return nil
}

func (m Image) write(path string) (err error) {
	if m.Name == "" {
		return errors.New("an image needs a name")
	}
	dir := filepath.Dir(path)
	out, err := os.CreateTemp(dir, ".image-")
	if err != nil {
		return err
	}
	defer func() {
		out.Close()
		if err != nil {
			os.Remove(out.Name())
		}
	}()
	tw := archive.NewWriter(out)
	if err := m.layout(tw, dir); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), path)
}

// layout writes the entries of the layout: blobs first, the index last.
func (m Image) layout(tw *archive.Writer, tempDir string) error {
	if err := addEntry(tw, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	config := ocispec.Image{
		Platform: ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   m.Config,
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	man := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	seen := map[digest.Digest]bool{}
	for i, l := range m.Layers {
		d, err := addLayer(tw, l, tempDir, seen)
		if err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		man.Layers = append(man.Layers, d)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, d.Digest)
	}
	var err error
	if man.Config, err = addJSON(tw, ocispec.MediaTypeImageConfig, config); err != nil {
		return err
	}
	top, err := addJSON(tw, ocispec.MediaTypeImageManifest, man)
	if err != nil {
		return err
	}
	top.Annotations = map[string]string{annotateName: m.Name}
	top.Platform = &config.Platform
	data, err := json.Marshal(ocispec.Index{Versioned: man.Versioned, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{top}})
	if err != nil {
		return err
	}
	return addEntry(tw, "index.json", data)
}

// addLayer writes a layer's blob. Its digest names the entry that holds it, so
// it is written to a temporary file first.
func addLayer(tw *archive.Writer, l Layer, tempDir string, seen map[digest.Digest]bool) (ocispec.Descriptor, error) {
	temp, err := os.CreateTemp(tempDir, ".layer-")
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	digester := digest.Canonical.Digester()
	if err := l.write(io.MultiWriter(temp, digester.Hash())); err != nil {
		return ocispec.Descriptor{}, err
	}
	size, err := temp.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = temp.Seek(0, io.SeekStart)
	}
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digester.Digest(), Size: size}
	if err != nil || seen[d.Digest] {
		return d, err
	}
	seen[d.Digest] = true
	if err := tw.WriteHeader(&archive.Header{Name: blob(d), Mode: 0o644, Size: size}); err != nil {
		return d, err
	}
	_, err = io.Copy(tw, temp)
	return d, err
}

func addJSON(tw *archive.Writer, mediaType string, value any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return d, addEntry(tw, blob(d), data)
}

func addEntry(tw *archive.Writer, name string, data []byte) error {
	if err := tw.WriteHeader(&archive.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := tw.Write(data)
	return err
}
