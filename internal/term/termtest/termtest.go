package termtest

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Open makes a pseudo-terminal of the given width in columns. Screen closes it and
// returns what was written to it; it is to be called once.
func Open(t testing.TB, columns int) (terminal *os.File, screen func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	all := make(chan string, 1)
	go func() {
		// Reading ends with EIO when nobody has the other side open.
		data, _ := io.ReadAll(master)
		master.Close()
		all <- strings.ReplaceAll(string(data), "\r\n", "\n")
	}()
	return slave, func() string {
		slave.Close()
		return <-all
	}
}
