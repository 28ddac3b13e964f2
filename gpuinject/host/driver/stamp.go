package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"golang.org/x/sys/unix"
)

// format is raised whenever a search finds something else on the same host, so that the results of
// an older shim are not used. A test (tablesSum) notices a change of the tables.
const format = 6

// Stamp is the state of a file or directory at the time of a search. If there was none, all but
// Path is zero.
type Stamp struct {
	// Path is in the driver root; links in it are followed.
	Path  string
	Dev   uint64 `json:",omitempty"`
	Inode uint64 `json:",omitempty"`
	Size  int64  `json:",omitempty"`
	// Ctime is in nanoseconds since 1970. Unlike the modification time, no program can set it back.
	Ctime int64 `json:",omitempty"`
	// Mtime is in nanoseconds since 1970. Removing a name changes Ctime, but not Mtime.
	Mtime int64 `json:",omitempty"`
}

// IsContentOf reports whether a file still has the content that it had at the time of the stamp,
// whatever its names.
func (s Stamp) IsContentOf(st unix.Stat_t) bool {
	now := newStamp(s.Path, st)
	now.Ctime = s.Ctime
	return s.Inode != 0 && now == s // guard: view: files of the loaded driver as they were
}

func newStamp(name string, st unix.Stat_t) Stamp {
	return Stamp{
		Path: name, Inode: st.Ino, Size: st.Size, Ctime: st.Ctim.Nano(), Mtime: st.Mtim.Nano(),
		Dev: uint64(st.Dev), //nolint:unconvert // 32 bits on some architectures
	}
}

func sumOf(stamps []Stamp) string {
	var text []byte
	for _, s := range stamps {
		text = s.append(text)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// append appends what fmt.Appendln would, without reflection: Fresh does so for each container.
func (s Stamp) append(text []byte) []byte {
	text = append(append(text, '{'), s.Path...)
	text = strconv.AppendUint(append(text, ' '), s.Dev, 10)
	text = strconv.AppendUint(append(text, ' '), s.Inode, 10)
	text = strconv.AppendInt(append(text, ' '), s.Size, 10)
	text = strconv.AppendInt(append(text, ' '), s.Ctime, 10)
	text = strconv.AppendInt(append(text, ' '), s.Mtime, 10)
	return append(text, "}\n"...)
}
