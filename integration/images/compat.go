package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Compat is an image with a CUDA forward compatibility library, as the CUDA
// images have it: /usr/local/cuda -> cuda-<CUDA>, compat/libcuda.so.1 ->
// libcuda.so.<Version>. The rest of the image is a minimal glibc with a cache.
type Compat struct {
	// Version is the driver version in the library's name, for example "610.43.02".
	Version string
	// CUDA is the toolkit's version; default "13.5".
	CUDA string
	// Note is the text of the ELF note .note.cuda.fwd_compatibility; nil means a
	// library without one. FwdNote makes a proper one.
	Note *string
	// Value is what cuDriverGetVersion of this libcuda gives, so that a test sees
	// which library was loaded.
	Value int
	// Files are added to the image, at the end.
	Files []File
}

// FwdNote is the text of a forward compatibility note: the CUDA version and the
// major versions of the drivers that the library serves.
func FwdNote(cuda string, drivers ...int) *string {
	if drivers == nil {
		drivers = []int{}
	}
	text, err := json.Marshal(struct {
		Format int
		CUDA   string `json:"CUDA Version"`
		Driver []int
		Device []int
	}{1, cuda, drivers, []int{}})
	if err != nil {
		panic(err) // integers and a string
	}
	note := string(text)
	return &note
}

// Name is a name made from the content, by which Ref gives the image's reference.
func (c Compat) Name() string {
	c = c.withDefaults()
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // plain data
	}
	sum := sha256.Sum256(data)
	return "compat-" + hex.EncodeToString(sum[:6])
}

func (c Compat) withDefaults() Compat {
	if c.CUDA == "" {
		c.CUDA = "13.5"
	}
	return c
}

// Build gives the path of the image's tar; its reference is Ref(c.Name()).
func (c Compat) Build() (string, error) {
	c = c.withDefaults()
	if c.Version == "" {
		return "", fmt.Errorf("compat image: no driver version")
	}
	return build(c.Name(), recipe{version: 2, packages: glibcPackages, make: c.make})
}

func (c Compat) make(b *builder) {
	b.glibcBase("usr/lib/" + b.arch.tuple)
	dir := "usr/local/cuda-" + c.CUDA + "/compat"
	b.libraries(
		library{path: dir + "/libcuda.so." + c.Version, soname: "libcuda.so.1", value: c.Value, cuda: true, note: c.Note},
		library{path: dir + "/libnvidia-ptxjitcompiler.so." + c.Version, soname: "libnvidia-ptxjitcompiler.so.1", value: c.Value})
	b.add(
		Symlink(dir+"/libcuda.so.1", "libcuda.so."+c.Version),
		Symlink(dir+"/libcuda.so", "libcuda.so.1"),
		Symlink(dir+"/libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so."+c.Version),
		Symlink("usr/local/cuda", "/usr/local/cuda-"+c.CUDA),
	)
	b.add(c.Files...)
	b.withCache(b.debianConfs())
}
