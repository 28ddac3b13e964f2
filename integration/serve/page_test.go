package serve

import (
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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

// browse has Chromium load a page without a profile, a network or a GPU. It takes the headless
// shell: the whole browser crashed once, 15 ms after its start.
func browse(t *testing.T, url string, scheme int, flags ...string) (stdout string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "browser")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("chromium-headless-shell", append(flags, "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--enable-logging=stderr", fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme), "--user-data-dir="+filepath.Join(dir, "profile"), url)...)
	// Files besides the profile: Chromium does not always remove them.
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	r, err := testenv.Output(2*time.Minute, cmd)
	// Its other processes may live a moment longer and write files.
	testenv.Await(t, "Chromium's files are removed", func() bool { return os.RemoveAll(dir) == nil })
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("chromium: status %d, %v\n%s", r.ExitCode, err, r.Error)
	}
	// Violations of the page's policy, and errors of the page.
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

// contrast is the contrast ratio of WCAG 2, from 1 to 21.
func contrast(a, b color.Color) float64 {
	light := func(c color.Color) float64 {
		linear := func(v uint32) float64 {
			if s := float64(v) / 0xffff; s > 0.04045 {
				return math.Pow((s+0.055)/1.055, 2.4)
			}
			return float64(v) / 0xffff / 12.92
		}
		r, g, b, _ := c.RGBA()
		return 0.2126*linear(r) + 0.7152*linear(g) + 0.0722*linear(b) + 0.05
	}
	return max(light(a), light(b)) / min(light(a), light(b))
}

// colours are those of the page's style, by property, in a scheme.
func colours(t *testing.T, page string, scheme int) map[string]color.Color {
	t.Helper()
	found := map[string]color.Color{}
	for _, m := range regexp.MustCompile(`([\w-]+): light-dark\(#(\w+), #(\w+)\)`).FindAllStringSubmatch(page, -1) {
		digits := m[3-scheme]
		if len(digits) == 3 {
			digits = regexp.MustCompile(".").ReplaceAllString(digits, "$0$0")
		}
		v, err := strconv.ParseUint(digits, 16, 24)
		if err != nil {
			t.Fatal(err)
		}
		found[m[1]] = color.NRGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 0xff}
	}
	return found
}

// bar returns the colours of a bar on both sides of where its filled part ends, each 30 pixels long.
func bar(t *testing.T, p image.Image) (filled, empty color.Color) {
	t.Helper()
	for y := range p.Bounds().Dy() {
		for x := 30; x < p.Bounds().Dx()-30; x++ {
			filled, empty := p.At(x-1, y), p.At(x, y)
			long := filled != empty && filled != p.At(1, 1) && empty != p.At(1, 1)
			for i := 1; long && i < 30; i++ {
				long = p.At(x-1-i, y) == filled && p.At(x+i, y) == empty
			}
			if long {
				return filled, empty
			}
		}
	}
	t.Fatal("there is no bar")
	return nil, nil
}

// readable checks what WCAG 2 asks of text, and of graphics that a reader has to see.
func readable(t *testing.T, page string, scheme int, picture image.Image) {
	t.Helper()
	has := colours(t, page, scheme)
	background := has["background"]
	if background == nil || has["color"] == nil || contrast(background, picture.At(1, 1)) != 1 {
		t.Fatalf("scheme %d: the background is %v, the style has %v", scheme, picture.At(1, 1), has)
	}
	for name, c := range has {
		if r := contrast(c, background); r < 4.5 && name != "background" && name != "--line" {
			t.Errorf("scheme %d: text of the colour %s has a contrast of %.1f", scheme, name, r)
		}
	}
	filled, empty := bar(t, picture)
	if r := contrast(filled, empty); r < 3 {
		t.Errorf("scheme %d: the filled part of a bar, %v, has a contrast of %.1f with the empty one, %v", scheme, filled, r, empty)
	}
}

func TestThePageInABrowser(t *testing.T) {
	n := newNode(t)
	url := "http://" + n.address + "/"
	// What the page says, without colours and pictures.
	dom := browse(t, url, light, "--dump-dom")
	simhost.Want(t, dom, "<b>team/"+n.pod+"</b>", "Free", "Partitioned into MIG devices", "MIG 2:1/0", "<b>team/"+infer+"</b>", " MiB</span>",
		"<b>team/greedy</b> <code>invalid_argument</code>", "unknown GPU")
	page, err := get(t, url)
	if err != nil {
		t.Fatal(err)
	}
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
			readable(t, page, scheme, picture)
			strongest := 0
			for y := range size.Dy() {
				// What is too wide would be cut off here.
				if luminance(picture, width-2, y) != background {
					t.Fatalf("scheme %d, width %d: line %d reaches the edge: %s", scheme, width, y, name)
				}
				for x := range width {
					strongest = max(strongest, luminance(picture, x, y)-background, background-luminance(picture, x, y))
				}
			}
			if strongest < 0xb000 {
				t.Errorf("scheme %d, width %d: the text has a contrast of %#x", scheme, width, strongest)
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
