package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Config is what an image says about the containers made from it.
type Config struct {
	Env        []string          `json:"Env,omitempty"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	User       string            `json:"User,omitempty"`
	WorkingDir string            `json:"WorkingDir,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

// Image is what Write makes an OCI image layout of.
type Image struct {
	// Name is the reference under which containerd knows the image.
	Name   string
	Config Config
	Layers []Layer
}

// Media types and annotations of the OCI image specification 1.1, and the
// annotation by which containerd names an image.
const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	annotateName  = "io.containerd.image.name"
)

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type imageConfig struct {
	platform
	Config Config `json:"config"`
	RootFS rootFS `json:"rootfs"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// Write writes the image as a tar of an OCI image layout. The same image gives
// the same bytes; layers are not compressed. A file that is there is replaced,
// by rename, so that nobody reads half of one.
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
	tw := tar.NewWriter(out)
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
func (m Image) layout(tw *tar.Writer, tempDir string) error {
	if err := addEntry(tw, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	config := imageConfig{
		platform: platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   m.Config,
		RootFS:   rootFS{Type: "layers", DiffIDs: []string{}},
	}
	man := manifest{SchemaVersion: 2, MediaType: mediaManifest, Layers: []descriptor{}}
	seen := map[string]bool{}
	for i, l := range m.Layers {
		d, err := addLayer(tw, l, tempDir, seen)
		if err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		man.Layers = append(man.Layers, d)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, d.Digest)
	}
	var err error
	if man.Config, err = addJSON(tw, mediaConfig, config); err != nil {
		return err
	}
	top, err := addJSON(tw, mediaManifest, man)
	if err != nil {
		return err
	}
	top.Annotations = map[string]string{annotateName: m.Name}
	top.Platform = &config.platform
	data, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaIndex, Manifests: []descriptor{top}})
	if err != nil {
		return err
	}
	return addEntry(tw, "index.json", data)
}

// addLayer writes a layer's blob. Its digest names the entry that holds it, so
// it is written to a temporary file first.
func addLayer(tw *tar.Writer, l Layer, tempDir string, seen map[string]bool) (descriptor, error) {
	temp, err := os.CreateTemp(tempDir, ".layer-")
	if err != nil {
		return descriptor{}, err
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	hash := sha256.New()
	if err := l.write(io.MultiWriter(temp, hash)); err != nil {
		return descriptor{}, err
	}
	size, err := temp.Seek(0, io.SeekCurrent)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := temp.Seek(0, io.SeekStart); err != nil {
		return descriptor{}, err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	d := descriptor{MediaType: mediaLayer, Digest: "sha256:" + sum, Size: size}
	if seen[sum] {
		return d, nil
	}
	seen[sum] = true
	if err := tw.WriteHeader(&tar.Header{Name: "blobs/sha256/" + sum, Mode: 0o644, Size: size, ModTime: mtime}); err != nil {
		return descriptor{}, err
	}
	_, err = io.Copy(tw, temp)
	return d, err
}

func addJSON(tw *tar.Writer, mediaType string, value any) (descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + name, Size: int64(len(data))}
	return d, addEntry(tw, "blobs/sha256/"+name, data)
}

func addEntry(tw *tar.Writer, name string, data []byte) error {
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: mtime}); err != nil {
		return err
	}
	_, err := tw.Write(data)
	return err
}
