package gpu

import (
	"os"
	"path/filepath"
	"testing"
)

// The pages give NVIDIA_SHIM_GPU_IMAGES a relative path.
func TestThePackedImageHasAnAbsolutePath(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := packedGraphics("images"); !os.IsNotExist(err) {
		t.Errorf("without an image: %v", err)
	}
	err := os.Mkdir("images", 0o755)
	if err == nil {
		err = os.WriteFile("images/"+graphicsTar, nil, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if name, err := packedGraphics("images"); err != nil || !filepath.IsAbs(name) || filepath.Base(name) != graphicsTar {
		t.Errorf("%q, %v", name, err)
	}
}
