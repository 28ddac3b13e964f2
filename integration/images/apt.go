package images

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// UnpackPackages fetches packages with the host's own apt and unpacks them below the existing
// directory dir; root is where. Nothing is installed.
func UnpackPackages(dir string, packages []string) (root string, err error) {
	apt, err := lookTool("apt-get")
	if err != nil {
		return "", fmt.Errorf("apt-get is missing: the packages %s come from this host's own Debian", strings.Join(packages, ", "))
	}
	debs, root := filepath.Join(dir, "debs"), filepath.Join(dir, "unpacked")
	for _, d := range []string{debs, root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
	}
	cmd := exec.Command(apt, append([]string{"download"}, packages...)...)
	cmd.Dir = debs
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get download (are the package lists there? apt-get update): %w\n%s", err, lastLines(string(out), 5))
	}
	found, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, deb := range found {
		if err := tool("dpkg", "dpkg-deb", "-x", deb, root); err != nil {
			return "", err
		}
	}
	return root, nil
}
