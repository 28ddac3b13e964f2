package driver

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// rewriter returns what makes a manifest of this name independent of the host's
// paths, nil for other files.
func (s *search) rewriter(name string) func([]byte) (out []byte, reason string) {
	switch path.Ext(name) {
	case ".json":
		return s.portableJSON
	case ".icd":
		return s.portableICD
	}
	return nil
}

// portableJSON is for the manifests of EGL and Vulkan, drivers and layers. The
// result is nil where nothing has to change; reason says why the file is of no use.
func (s *search) portableJSON(text []byte) (out []byte, reason string) {
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, "is not a JSON object: " + err.Error()
	}
	objects := []any{doc["ICD"], doc["layer"]}
	if layers, ok := doc["layers"].([]any); ok {
		objects = append(objects, layers...)
	}
	changed := false
	for _, o := range objects {
		object, ok := o.(map[string]any)
		if !ok {
			continue
		}
		name, ok := object["library_path"].(string)
		if !ok {
			continue
		}
		base, reason := s.byName(name)
		if reason != "" {
			return nil, reason
		}
		if base != name {
			object["library_path"], changed = base, true
		}
		// Fedora has one manifest for each ABI. The container gets one, which serves
		// both where both libraries are there.
		if _, ok := object["library_arch"]; ok && s.provides(base, 32) {
			delete(object, "library_arch")
			changed = true
		}
	}
	if !changed {
		return nil, ""
	}
	out, err := json.MarshalIndent(doc, "", "    ")
	if err != nil {
		return nil, err.Error()
	}
	return append(out, '\n'), ""
}

// portableICD is for OpenCL's file, which has the library in its one line.
func (s *search) portableICD(text []byte) (out []byte, reason string) {
	name := strings.TrimSpace(string(text))
	base, reason := s.byName(name)
	if reason != "" || base == name {
		return nil, reason
	}
	return []byte(base + "\n"), ""
}

// byName turns the path of a library into its name, by which the container's loader
// finds it.
func (s *search) byName(name string) (base, reason string) {
	if !strings.Contains(name, "/") {
		return name, ""
	}
	base = path.Base(name)
	if !s.provides(base, 64) {
		return "", fmt.Sprintf("names the library %.256q, which is none of this driver's", name)
	}
	return base, ""
}

// provides tells whether a library of the driver can be loaded by this name.
func (s *search) provides(name string, bits int) bool {
	return slices.ContainsFunc(s.files.Libraries, func(l Library) bool {
		return l.Bits == bits && l.Subdir == "" && (l.SOName == name || l.Name == name || slices.Contains(l.Links, name))
	})
}

// generate makes a file that the host lacks although it has the library: drivers of
// servers and of driver containers come without.
func (s *search) generate(k dataKind) (File, bool) {
	for _, l := range s.files.Libraries {
		stem, _, _ := split(l.Name)
		if k.content == nil || stem != k.library || l.Bits != 64 || l.Subdir != "" {
			continue
		}
		name := l.SOName
		if name == "" {
			name = l.Name
		}
		return File{Data: []byte(k.content(name, s.files.Version)), Needs: k.needs}, true
	}
	return File{}, false
}

// platformJSON is the form of libglvnd's vendor files and of EGL's external
// platforms.
func platformJSON(soname, _ string) string {
	return fmt.Sprintf("{\n    \"file_format_version\" : \"1.0.0\",\n    \"ICD\" : {\n        \"library_path\" : %q\n    }\n}\n", soname)
}

// vulkanJSON is the manifest of the Vulkan driver. Of api_version the loader heeds
// major and minor: it is the most that an application may ask of the driver. Every
// release from these branches on supports what is said here, so it is never too much.
func vulkanJSON(soname, version string) string {
	api := "1.1.99"
	branch, _, _ := strings.Cut(version, ".")
	switch n, _ := strconv.Atoi(branch); {
	case n >= 570:
		api = "1.4.303"
	case n >= 510:
		api = "1.3.194"
	case n >= 450:
		api = "1.2.133"
	}
	return fmt.Sprintf("{\n    \"file_format_version\" : \"1.0.1\",\n    \"ICD\": {\n        \"library_path\": %q,\n        \"api_version\" : %q\n    }\n}\n", soname, api)
}
