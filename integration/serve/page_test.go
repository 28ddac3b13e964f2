package serve

import (
	"flag"
	"fmt"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/simhost"
	"github.com/containerd-shim-nvidia/containerd-shim-nvidia/integration/testenv"
)

var screenshots = flag.Bool("screenshots", false, "write the screenshots in docs/")

// Schemes of colours, as Chromium numbers them.
const (
	dark  = 0
	light = 1
)

// browse has Chromium load a page without a profile, a network or a GPU.
func browse(t *testing.T, url string, scheme int, flags ...string) (stdout string) {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "profile")
	cmd := exec.Command("chromium", append(flags, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--enable-logging=stderr", fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme), "--user-data-dir="+profile, url)...)
	r, err := testenv.Output(2*time.Minute, cmd)
	// Its other processes may live a moment longer, and write.
	testenv.Await(t, 10*time.Second, "Chromium's profile is removed", func() bool { return os.RemoveAll(profile) == nil })
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("chromium: status %d, %v\n%s", r.ExitCode, err, r.Error)
	}
	// What the policy of the page does not permit, or the page does wrong.
	for line := range strings.Lines(r.Error) {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("the browser says: %s", line)
		}
	}
	return r.Output
}

// photograph returns what the page looks like in a window of this width.
func photograph(t *testing.T, url string, scheme, width int) (image.Image, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "page.png")
	browse(t, url, scheme, "--screenshot="+name, fmt.Sprintf("--window-size=%d,1000", width))
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return picture, name
}

// luminance of a pixel, 0 to 0xffff.
func luminance(p image.Image, x, y int) int {
	r, g, b, _ := p.At(x, y).RGBA()
	return int(299*r+587*g+114*b) / 1000
}

func TestThePageInABrowser(t *testing.T) {
	n := newNode(t)
	url := "http://" + n.address + "/"
	// What a reader learns, without colours and pictures.
	dom := browse(t, url, light, "--dump-dom")
	simhost.Want(t, dom, "<b>team/"+n.pod+"</b>", "Free", "Partitioned into MIG devices", "MIG 2:1/0", "<b>team/"+infer+"</b>", " MiB</span>",
		"<b>team/greedy</b> <code>invalid_argument</code>", "unknown GPU")
	for _, scheme := range []int{dark, light} {
		for _, width := range []int{400, 800, 1600} {
			picture, name := photograph(t, url, scheme, width)
			size := picture.Bounds()
			if size.Dx() != width {
				t.Fatalf("%d pixels wide instead of %d", size.Dx(), width)
			}
			background := luminance(picture, 1, 1)
			if isLight := background > 0x8000; isLight != (scheme == light) {
				t.Errorf("scheme %d: a background of luminance %#x", scheme, background)
			}
			contrast := 0
			for y := range size.Dy() {
				// What is too wide would be cut off here.
				if luminance(picture, width-2, y) != background {
					t.Fatalf("scheme %d, width %d: line %d reaches the edge: %s", scheme, width, y, name)
				}
				for x := range width {
					contrast = max(contrast, luminance(picture, x, y)-background, background-luminance(picture, x, y))
				}
			}
			if contrast < 0xb000 {
				t.Errorf("scheme %d, width %d: the text has a contrast of %#x", scheme, width, contrast)
			}
			if *screenshots && width == 800 {
				keep(t, name, "../../docs/serve-"+[]string{"dark", "light"}[scheme]+".png")
			}
		}
	}
}

func keep(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
